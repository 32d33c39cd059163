"""``rltuned status``: how the daemon is, by the files that it keeps. Slurm is not asked."""

import contextlib
import math
from dataclasses import asdict, dataclass
from typing import Any

from rltuned.controller.health.clock import Clock
from rltuned.controller.health.lock import Holder
from rltuned.controller.health.prerequisites import Finding, Severity
from rltuned.controller.shown.checks import kept
from rltuned.core.config import Config, Stage
from rltuned.core.errors import RltunedError
from rltuned.decide.entry import CycleEntry
from rltuned.records import decisions


@dataclass(frozen=True, kw_only=True)
class Status:
    """One screen."""

    now: float  # epoch seconds
    configured: Stage
    holder: Holder | None  # of the lock: the daemon, or a restore
    last: CycleEntry | None  # the last cycle of the last day
    in_force: int | None
    """Of the jobs that it raised, those that squeue showed raised; None: not known."""
    share: float | None  # `lend.share` of the last plan; None: not known
    lent: float  # GPU-seconds of the loans that were open in the last day, and …
    loans: int  # … how many
    findings: tuple[Finding, ...]  # all that the files say

    @property
    def paused(self) -> str | None:
        """Until when."""
        return next((item.cause for item in self.findings if item.subject == "paused"), None)

    @property
    def alarms(self) -> list[Finding]:
        """What is to be looked at."""
        return [item for item in self.findings if item.severity in {Severity.WARNING, Severity.ERROR}]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        last, wanted = self.last, None if self.last is None else self.last.wanted
        names = "time", "outcome", "stage", "held_back", "sentence"
        return {
            "configured_stage": self.configured,
            "daemon": None if self.holder is None else asdict(self.holder),
            "last_cycle": None if last is None else {name: getattr(last, name) for name in names},
            "raised": None if wanted is None else {"wanted": wanted.raised, "in_force": self.in_force},
            "lent": {"gpu_seconds": round(self.lent, 1), "loans": self.loans, "share": self.share},
            "paused": self.paused or "",
            "alarms": [asdict(item) for item in self.alarms],
        }


def look(config: Config, clock: Clock) -> Status:
    """By the files of `state.directory`. What of them cannot be read is among the findings."""
    directory, now = config.state.directory, clock.time()
    last, in_force, share, lent = None, None, None, dict[tuple[int, int], float]()
    with contextlib.suppress(RltunedError):
        for entry in decisions.entries(directory, now - decisions.DAY, math.inf):
            last, made = entry, entry.decision
            lent |= {} if made is None else {(loan.borrower, loan.lender): loan.lent for loan in made.loans}
    if last is not None and last.wanted is not None:
        with contextlib.suppress(RltunedError):
            plan = decisions.load(directory)
            in_force, share = plan.in_force, plan.share
    found = kept(config, clock)
    return Status(
        now=now,
        configured=config.cycle.stage,
        holder=found.holder,
        last=last,
        in_force=in_force,
        share=share,
        lent=sum(lent.values()),
        loans=len(lent),
        findings=tuple(found.findings),
    )
