"""A daemon on the simulated Slurm: what the tests of the port and of the demonstration share."""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from unit.controller.support import make_daemon

from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.report import CycleReport
from rltuned.core.config import (
    Config,
    CycleSection,
    PlacementSection,
    PolicySection,
    Stage,
    StateSection,
)
from rltuned.decide.plan import Plan, plan
from rltuned.lab.demo.people import Rates, draw_interventions
from rltuned.lab.demo.simulated_slurm import Profile, SimulatedSlurm
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import Estimates
from rltuned.simulate.workload.jobs import Source, Workload, workload

RATES = Rates(
    hold=0.06, cancel=0.03, nice=0.06, admin_priority=0.03, admin_site_factor=0.03, admin_hold=0.02, delay=1200.0
)
"""More meddling than anywhere."""
NO_ONE = Rates(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # nobody does anything but submit


def busy_jobs(n: int, seed: int, gap: float = 60.0) -> Workload:
    """Jobs of twelve users that come faster than the small clusters of the tests can run them."""
    random_ = np.random.default_rng(seed)
    gpus = random_.choice([1, 1, 2, 4, 8], n)
    run_time = np.exp(random_.normal(6.3, 1.4, n)).clip(10, 40_000)
    return workload(
        Source("test"),
        np.sort(random_.uniform(0, n * gap, n)),
        run_time,
        gpus,
        time_limit=np.ceil(run_time * np.exp(abs(random_.normal(0, 1.2, n))) / 600) * 600,
        user=[f"user{k}" for k in random_.integers(0, 12, n)],
        account=[f"account{k}" for k in random_.integers(0, 4, n)],
        cpus=gpus * 4,
        mem=gpus * 16_000.0,
    )


def busy_slurm(n: int = 150, seed: int = 1, rates: Rates = RATES, profile: Profile | None = None, **values: object):
    """A queue of some dozens of jobs after an hour."""
    jobs = busy_jobs(n, seed, gap=30.0)
    return SimulatedSlurm(
        parse_shape("3x8:a100:64c:512g,4x4:v100:32c:256g"),
        jobs,
        Estimates(jobs.time_limit, jobs.time_limit),
        interventions=draw_interventions(jobs, seed, rates),
        profile=profile,
        **values,  # type: ignore[arg-type]
    )


def config(directory: Path, *, policy: str = "sjf", placement: str = "off", **sections: object) -> Config:
    return Config(
        cycle=CycleSection(stage=Stage.ACTIVE, interval=60.0),
        policy=PolicySection(name=policy),
        placement=PlacementSection(apply=placement),  # type: ignore[arg-type]
        state=StateSection(directory=directory / "state", mirror=None),
        **sections,  # type: ignore[arg-type]
    )


@dataclass
class House:
    """The daemon, its cluster, what it planned and what it logged."""

    slurm: SimulatedSlurm
    config: Config
    log: io.StringIO = field(default_factory=io.StringIO)
    plans: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.daemon = self.start()

    def start(self) -> Daemon:
        def planner(snapshot, policy, config, applied, book):
            self.plans.append(plan(snapshot, policy, config, applied, book=book))
            return self.plans[-1]

        slurm = self.slurm
        return make_daemon(self.config, slurm, lambda: slurm, slurm.clock, log=self.log, planner=planner)

    def wait(self) -> None:
        """To the next full minute."""
        self.slurm.advance((np.floor(self.slurm.simulation.now / 60.0) + 1.0) * 60.0)

    def tick(self) -> CycleReport:
        """One cycle at the next full minute."""
        self.wait()
        return self.cycle()

    def cycle(self) -> CycleReport:
        report = self.daemon.tick()
        assert report is not None
        return report

    def events(self, name: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]
