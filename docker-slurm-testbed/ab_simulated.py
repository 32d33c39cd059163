"""What the simulator says of an A/B: the same jobs on a simulated Slurm, with the real daemon on it.

Not the rankers of `rltuned evaluate`: the daemon itself (its loans, its history, what it writes and when) with
the arm's own configuration, as in `rltuned demo`.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ab_jobs import QOS, weights
from fidelity import DRIFT, LATE, configured
from replay import MINUTE
from testbed import TestbedError

from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.planning import planned
from rltuned.controller.cycle.policy import load_policy
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.learnt.history import LearntRunTimes
from rltuned.controller.tell.logs import make
from rltuned.controller.tell.metrics import Metrics
from rltuned.controller.write.journal import Journal
from rltuned.core.config import Config
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.scope import Veto
from rltuned.lab.demo.simulated_slurm import Profile, SimulatedSlurm
from rltuned.simulate.priorities import MultifactorPriorities
from rltuned.simulate.values import Estimates, SimulationSettings

if TYPE_CHECKING:
    from ab_jobs import Arm, Site
    from replay import Jobs

    from rltuned.simulate.shape import ClusterShape

Floats = np.ndarray[Any, np.dtype[np.float64]]

PATIENCE: Final = 10
"""Planned run times after which a simulation that does not end is an error."""


def settings(parameters: str, launch: float) -> SimulationSettings:
    """Of the testbed's Slurm (docs/simulator.md) with these SchedulerParameters. `launch`: seconds that a job takes
    beyond its sleep.
    """
    return replace(
        configured(parameters),
        sched_interval=1.0,
        bf_offset=0.5,
        launch=launch,
        kill_interval=30.0,
    )


def simulate(
    jobs: Jobs, shape: ClusterShape, arm: Arm, site: Site, interval: float, launch: float, draw: int
) -> tuple[Floats, Floats]:
    """(N,) start and end of each job, seconds.

    Args:
        jobs: of the A/B.
        shape: the cluster.
        arm: whose daemon.
        site: whose Slurm.
        interval: of the daemon's cycle, seconds.
        launch: seconds that a job takes beyond its sleep.
        draw: simulations of different numbers differ in milliseconds, and in when priorities are calculated.

    Raises:
        TestbedError: a job never ended.
    """
    rng = np.random.default_rng(draw)
    late = np.sort(rng.uniform(0.0, LATE, len(jobs.workload)))
    drawn = replace(jobs.workload, submit_time=jobs.workload.submit_time + late - late[0])
    conf = {**site.conf, **arm.conf}
    slurm_settings = settings(conf["SchedulerParameters"], launch)
    offset = float((slurm_settings.bf_offset + rng.normal(0.0, DRIFT)) % slurm_settings.bf_interval)
    limit = jobs.workload.time_limit
    # As the testbed's (README.md). When slurmctld looks at the fair share decides much: who has just begun?
    profile = Profile(calc_period=MINUTE, calc_phase=float(rng.uniform(0.0, MINUTE)), listed_at_once=True)
    slurm = SimulatedSlurm(
        shape,
        drawn,
        Estimates(limit, limit.copy()),
        replace(slurm_settings, bf_offset=offset),
        weights(conf),
        profile=profile,
        past=[job._replace(end=profile.epoch + job.end) for job in site.past],
    )
    slurm.priorities = MultifactorPriorities(slurm.simulation, weights(conf), QOS, site.others(jobs))
    until = PATIENCE * site.minutes * MINUTE
    if arm.sections is None:
        while not slurm.done and slurm.simulation.now < until:
            slurm.advance(slurm.simulation.now + interval)
    else:
        _steered(slurm, arm, interval, float(rng.uniform(0.0, interval)), until)
    result = slurm.simulation.result()
    if np.isnan(result.end).any():
        row = int(np.flatnonzero(np.isnan(result.end))[0])
        message = f"simulated {arm.name}: job {jobs.workload.job_id[row]} ({jobs.kind[row]}) never ended"
        raise TestbedError(message)
    return result.start, result.end


def _steered(slurm: SimulatedSlurm, arm: Arm, interval: float, first: float, until: float) -> None:
    """The daemon, its first cycle at `first`, until all jobs have ended."""
    with tempfile.TemporaryDirectory(prefix="rltuned-ab-") as folder, ExitStack() as stack:
        directory = Path(folder)
        state = {"state": {"directory": str(directory), "mirror": ""}}
        config = Config.model_validate({**arm.configuration(interval), **state})
        log = make("warning", "json", stack.enter_context((directory / "log").open("w", encoding="utf-8")))
        metrics = Metrics([veto.value for veto in Veto], [outcome.value for outcome in SolveOutcome])
        runtime = Runtime(config, slurm.clock, log, metrics)
        history = LearntRunTimes(slurm, runtime)
        parts = Parts(
            runtime=runtime,
            policy=load_policy(config),
            reader=slurm,
            writer=lambda: slurm,
            journal=Journal.open(directory, None),
            planner=partial(planned, history.predicted),
            told=history.told,
            rng=random.Random(0),  # noqa: S311 - jitter of a back-off
        )
        daemon = Daemon(parts)
        stack.callback(daemon.stop)
        cycle, refreshed = first, -np.inf
        while not slurm.done and slurm.simulation.now < until:
            slurm.advance(max(cycle, slurm.simulation.now))
            if slurm.simulation.now >= refreshed + config.estimates.refresh:
                refreshed = slurm.simulation.now
                history.refresh()
            daemon.tick()
            cycle += interval
