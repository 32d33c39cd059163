"""The simulator beside a real Slurm: the jobs of a REPLAY.json (`testbed replay`) run again on a simulated cluster.

    .venv/bin/python docker-slurm-testbed/fidelity.py REPLAY.json [--model NAME]

prints the mean waits of all jobs and of each class, here and there.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.core.config import DEFAULT_MODEL, Config, LendSection
from rltuned.core.errors import EvaluationError, RltunedError
from rltuned.core.notation import expand
from rltuned.core.scheduler import SchedulerParameters
from rltuned.core.tables import Bools, Floats, Ints, Rows
from rltuned.decide.rank.heuristics import RULES, by_name
from rltuned.decide.rank.protocol import Policy
from rltuned.records import model_files as files
from rltuned.simulate.engine import Ranker, Simulation
from rltuned.simulate.rankers import PlanRanker
from rltuned.simulate.shape import ClusterShape, from_json
from rltuned.simulate.values import Estimates, JobFate, SimulationResult, SimulationSettings
from rltuned.simulate.workload.jobs import Source, Workload, workload

FORM: Final = 1
"""Version of REPLAY.json that is understood."""
DAEMON: Final = "daemon:"
"""Prefix of a policy that a real daemon carried out."""
MINUTE: Final = 60.0
GROUP: Final = 30.0
"""Seconds; sched/backfill's groups of ends begin at multiples of it."""
DRAWS: Final = 8
"""Simulations of one replay, of which the means are compared. Milliseconds decide which job starts before which: two
replays of the same jobs on the same cluster differ by one to three per cent in a class."""
LATE: Final = 0.02
"""Seconds by which submissions are drawn later, at most."""
DRIFT: Final = 0.1
"""Seconds, σ: the backfill passes are not as regular as one interval and one offset say."""
HIGHEST: Final = 1_000_000
"""As `replay` has it."""
STEADY: Final = 0.002
"""Seconds: an interval as near to one second is one (24.11 and 26.05 pass at whole seconds)."""


@dataclass(frozen=True)
class Waits:
    """Mean waits of the same jobs, seconds from eligible to start."""

    jobs: int
    real: float
    simulated: float

    @property
    def difference(self) -> float:
        """(simulated − real) / real; 0 where nobody waited in either."""
        if self.real == 0.0:
            return 0.0 if self.simulated == 0.0 else float("inf")
        return (self.simulated - self.real) / self.real


@dataclass(frozen=True)
class Fidelity:
    """How far the simulator is from one replay."""

    slurm: str
    """Release, such as 24.11.5."""
    policy: str
    total: Waits
    classes: Mapping[str, Waits]
    """By class of job, the largest class first."""
    makespan_real: float
    """Seconds from the first submission to the last end."""
    makespan_simulated: float
    same_node: float
    """Share of the jobs that ran on exactly the same nodes in both."""
    backfilled_real: int
    """Jobs that Slurm's backfill started."""
    backfilled_simulated: float
    real: Floats
    """(N,) wait of each job, seconds, in the order of submission."""
    simulated: Floats


class Replayed:
    """What a REPLAY.json says, as the simulator's inputs."""

    def __init__(self, replay: Mapping[str, Any]) -> None:
        """Raises:
        EvaluationError: it is not what `testbed replay` writes, or of another version.
        """
        try:
            self.meta: Mapping[str, Any] = replay["meta"]
            if self.meta["form"] != FORM:
                raise EvaluationError(f"replay: form {self.meta['form']!r} is not known, only {FORM}")
            jobs = sorted(replay["jobs"], key=lambda job: (job["submit"], job["slurm_job_id"]))
            if not jobs:
                raise EvaluationError("replay: no jobs in it")
            self.shape: ClusterShape = from_json(replay["cluster"], "replay")
            self.names = [str(pool["name"]) for pool in replay["cluster"]["pools"]]
            main, backfill = (
                (float(self.meta[of]["interval"]), float(self.meta[of]["offset"]))
                for of in ("main_pass", "backfill_pass")
            )
            interval = 1.0 if abs(main[0] - 1.0) < STEADY else main[0]
            # The simulator makes main passes at multiples of their interval, groups ends by whole half minutes, and
            # plans in steps of bf_resolution, as slurmctld does by those of the epoch: its clock begins with one of
            # both, as nearly as its passes allow.
            step = configured(str(self.meta["scheduler_parameters"])).bf_resolution
            into = float(self.meta["zero"]) % math.lcm(round(GROUP), round(step))
            shift = round((into + main[1]) / interval) * interval - main[1]
            self.sched_interval, self.bf_interval, self.bf_offset = interval, backfill[0], backfill[1] + shift
            self.start, self.end, self.submit = (
                np.array([float(job[of]) for job in jobs]) + shift for of in ("start", "end", "eligible")
            )
            self.kind = [str(job["class"]) for job in jobs]
            self.nodes = [str(job["nodes"]) for job in jobs]
            self.nice = np.array([float(job["nice"]) for job in jobs])
            self.jobs: Workload = workload(
                Source(name=str(self.meta["workload"]), sha256=str(self.meta["sha256"])),
                self.submit,
                # As it was, not as it was meant: what the machine adds to a sleep holds the GPUs like the sleep itself.
                self.end - self.start,
                [job["gpus"] for job in jobs],
                job_id=[job["job_id"] for job in jobs],
                nodes=[job["nodes_asked"] for job in jobs],
                cpus=[job["cpus"] for job in jobs],
                mem=[job["mem"] for job in jobs],
                partition=[job["partition"] for job in jobs],
                gpu_type=[job["gpu_type"] for job in jobs],
                user=[job["user"] for job in jobs],
            )
            self.estimates = Estimates(
                time_limit=np.array([float(job["time_limit"]) for job in jobs]),
                run_time=np.array([max(float(job["estimate"]), 1.0) for job in jobs]),
            )
            self.policy = str(self.meta["policy"])
        except (KeyError, TypeError, ValueError) as error:
            raise EvaluationError(f"replay: not what `testbed replay` writes: {error!r}") from error


class FixedRanker:
    """An order that Slurm keeps from the start, by nice values: a job has its place the moment it is submitted."""

    ages = False
    at_once = True

    def __init__(self, nice: Floats) -> None:
        self._nice = nice

    def fixed(self, simulation: Simulation) -> Floats | None:  # noqa: ARG002 - of the protocol
        """(N,) the nice values."""
        return self._nice

    def keys(self, simulation: Simulation, rows: npt.NDArray[np.intp]) -> Floats:  # noqa: ARG002 - of the protocol
        """(n,) the nice values of these jobs."""
        return self._nice[rows]


def compare(replay: Mapping[str, Any], model: Policy | None = None) -> Fidelity:
    """Simulate the replay's jobs: same cluster, submissions, run times, limits, order and settings of Slurm.

    The mean of `DRAWS` simulations that differ in milliseconds; equal input gives equal output.

    Args:
        replay: the parsed REPLAY.json.
        model: for a replay that a model steered (``daemon:model``): that model.

    Raises:
        EvaluationError: not a REPLAY.json, a job that the simulator rejects, or a model is missing.
    """
    real = Replayed(replay)
    settings = slurm_settings(real)
    rng = np.random.default_rng(0)
    waits, makespans, same, backfilled = [], [], [], []
    for _ in range(DRAWS):
        jobs, late = real.jobs, np.sort(rng.uniform(0.0, LATE, len(real.jobs)))
        drawn = replace(jobs, submit_time=jobs.submit_time + late - late[0])
        offset = (settings.bf_offset + rng.normal(0.0, DRIFT)) % settings.bf_interval
        simulation = Simulation(real.shape, drawn, real.estimates, replace(settings, bf_offset=offset))
        simulation.run(_ranker(real, model))
        result = simulation.result()
        _all_ran(real, result)
        waits.append(result.start - drawn.submit_time)
        makespans.append(float(result.end.max() - real.submit.min()))
        same.append(_same_nodes(real, result))
        backfilled.append(int(np.count_nonzero(result.backfilled)))
    real_wait, simulated = np.maximum(real.start - real.submit, 0.0), np.asarray(np.mean(waits, axis=0))
    kinds = sorted(set(real.kind), key=lambda kind: (-real.kind.count(kind), kind))
    of = np.array(real.kind)
    return Fidelity(
        slurm=str(real.meta["slurm"]),
        policy=real.policy,
        total=_waits(real_wait, simulated, np.ones(len(of), dtype=np.bool_)),
        classes={kind: _waits(real_wait, simulated, of == kind) for kind in kinds},
        makespan_real=float(real.end.max() - real.submit.min()),
        makespan_simulated=float(np.mean(makespans)),
        same_node=float(np.mean(same)),
        backfilled_real=sum(bool(job.get("backfilled")) for job in replay["jobs"]),
        backfilled_simulated=float(np.mean(backfilled)),
        real=real_wait,
        simulated=simulated,
    )


def _all_ran(real: Replayed, result: SimulationResult) -> None:
    for row, reason in result.rejected.items():
        raise EvaluationError(f"replay: job {real.jobs.job_id[row]} ran, but the simulator says: {reason}")
    unfinished = np.flatnonzero((result.fate != JobFate.COMPLETED) & (result.fate != JobFate.TIMEOUT))
    if len(unfinished):
        raise EvaluationError(f"replay: the simulator did not finish job {real.jobs.job_id[unfinished[0]]}")


def _same_nodes(real: Replayed, result: SimulationResult) -> float:
    """Share of the jobs that ran on the nodes of the replay."""
    simulated = [
        {real.names[node] for node in result.node_idx[result.node_ptr[row] : result.node_ptr[row + 1]]}
        for row in range(len(real.jobs))
    ]
    return float(np.mean([a == set(expand(b)) for a, b in zip(simulated, real.nodes, strict=True)]))


def _waits(real: Floats, simulated: Floats, chosen: Bools) -> Waits:
    return Waits(int(chosen.sum()), float(real[chosen].mean()), float(simulated[chosen].mean()))


def _ranker(real: Replayed, model: Policy | None) -> Ranker:
    if not real.policy.startswith(DAEMON):
        return FixedRanker(real.nice)
    name = real.policy.removeprefix(DAEMON)
    policy = by_name(name) if name in RULES else model
    if policy is None:
        raise EvaluationError(f"replay: the policy {name!r} is a model: give it")
    return PlanRanker(policy, Config(lend=LendSection(share=1.0, most=256)), slurm=alike)  # as `replay.by_limits`


def alike(simulation: Simulation, rows: Rows) -> Ints:  # noqa: ARG001 - of the protocol
    """(n,) priorities of Slurm's own under a daemon (`replay.plain_priorities`): all the same."""
    return np.full(len(rows), HIGHEST // 2, dtype=np.int64)


def configured(parameters: str) -> SimulationSettings:
    """Of a Slurm with these SchedulerParameters, as slurm.conf(5) has them; what is not simulated is left out."""
    words = (word.partition("=") for word in parameters.split(","))
    return SimulationSettings.of_cluster(SchedulerParameters.read({name.strip(): value for name, _, value in words}))


def slurm_settings(real: Replayed) -> SimulationSettings:
    """Settings of the simulated Slurm for a replay: SchedulerParameters, passes as measured, the daemon's interval.

    What SchedulerParameters does not say has slurm.conf(5)'s default.
    """
    refresh = float(real.meta["interval"] or 1.0)
    return replace(
        configured(str(real.meta["scheduler_parameters"])),
        sched_interval=real.sched_interval,
        bf_interval=real.bf_interval,
        bf_offset=real.bf_offset,
        refresh=refresh,
        stale=refresh,
    )


def main() -> int:
    """Compares; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compares the simulator with a replay on a real Slurm.")
    parser.add_argument("replay", type=Path, metavar="REPLAY.json", help="what `testbed replay` wrote")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="of a replay that a model steered: name or manifest")
    asked = parser.parse_args()
    try:
        found = compare(json.loads(asked.replay.read_text()), files.load(asked.model))
    except (OSError, ValueError, RltunedError) as error:
        sys.stderr.write(f"{asked.replay}: {error}\n")
        return 1
    sys.stdout.write(f"Slurm {found.slurm}, {found.policy}; waits in seconds\n")
    for name, waits in {"all": found.total, **found.classes}.items():
        beside = f"{waits.real:>10.2f} real {waits.simulated:>10.2f} simulated {waits.difference:>+8.1%}"
        sys.stdout.write(f"{name:<16}{waits.jobs:>6} jobs {beside}\n")
    sys.stdout.write(
        f"makespan {found.makespan_real:.1f} s real, {found.makespan_simulated:.1f} s simulated; "
        f"{found.same_node:.0%} of the jobs ran on the same nodes\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
