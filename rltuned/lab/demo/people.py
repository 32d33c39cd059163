"""What people do to jobs and nodes while a cluster runs: users hold, release, cancel or set Nice; admins decide.

`SimulatedSlurm` carries them out as Slurm would.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rltuned.simulate.workload.jobs import Workload


class Act(enum.StrEnum):
    """What somebody does. scontrol(1), scancel(1)."""

    HOLD = "hold"  # the owner holds the job
    RELEASE = "release"
    """The owner releases it; without effect on what an admin holds, and on an explicit priority."""
    CANCEL = "cancel"
    NICE = "nice"  # the owner sets Nice to `value`
    ADMIN_HOLD = "admin-hold"
    ADMIN_RELEASE = "admin-release"
    """An operator releases it: also hands an explicit priority back to multifactor."""
    ADMIN_PRIORITY = "admin-priority"
    """An operator sets Priority to `value`; 0 holds the job."""
    ADMIN_SITE_FACTOR = "admin-site-factor"  # an operator sets SiteFactor to `value`
    DRAIN = "drain"  # an operator drains the node `value`
    RESUME = "resume"  # an operator resumes the node `value`


@dataclass(frozen=True, slots=True)
class Intervention:
    """One act at one time. On a job that is not pending then, it does nothing."""

    time: float  # seconds on the workload's clock
    act: Act
    row: int = -1  # row of the workload; −1 for a node
    value: int | str = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """How often people do what: shares of the jobs, 0 to 1."""

    hold: float = 0.02  # held by their owner for a while, then released
    cancel: float = 0.01
    nice: float = 0.02
    admin_priority: float = 0.004
    admin_site_factor: float = 0.004
    admin_hold: float = 0.004
    delay: float = 900.0
    """Mean time from submission to the intervention, and from hold to release, seconds (exponential)."""


def draw_interventions(jobs: Workload, seed: int, rates: Rates = Rates()) -> list[Intervention]:
    """Draw interventions on the jobs of a workload, in order of time; the same for the same seed."""
    random = np.random.default_rng([seed, 0x9E09])
    n = len(jobs)
    drawn: list[Intervention] = []

    def chosen(share: float) -> Sequence[int]:
        return [int(row) for row in np.flatnonzero(random.random(n) < share)]

    def later() -> float:
        return float(random.exponential(rates.delay))

    for share, first, second in (
        (rates.hold, Act.HOLD, Act.RELEASE),
        (rates.admin_hold, Act.ADMIN_HOLD, Act.ADMIN_RELEASE),
    ):
        for row in chosen(share):
            at = float(jobs.submit_time[row]) + later()
            drawn += [Intervention(at, first, row), Intervention(at + later(), second, row)]
    for row in chosen(rates.cancel):
        drawn.append(Intervention(float(jobs.submit_time[row]) + later(), Act.CANCEL, row))
    for share, act, values in (
        (rates.nice, Act.NICE, (1, 2000)),
        (rates.admin_priority, Act.ADMIN_PRIORITY, (1, 60_000)),
        (rates.admin_site_factor, Act.ADMIN_SITE_FACTOR, (-5000, 5000)),
    ):
        for row in chosen(share):
            at = float(jobs.submit_time[row]) + later()
            drawn.append(Intervention(at, act, row, int(random.integers(*values))))
    return sorted(drawn, key=lambda intervention: intervention.time)
