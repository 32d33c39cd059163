"""What accounts have borrowed from each other's fair share (decision 0160)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np

from rltuned.cluster.tables import Category


def owners(account: Category, user: Category) -> Category:
    """Whose fair share counts, of each job: its account; its user where all jobs are of one account."""
    return account if len(np.unique(account.codes)) > 1 else user


class Loan(NamedTuple):
    """One raised job."""

    submit_time: int
    account: str
    seconds: float
    """GPU-seconds that it borrows when it starts."""


@dataclass(frozen=True)
class Borrowed:
    """What accounts have borrowed."""

    time: float = 0.0
    """Until when `owed` has decayed, epoch seconds."""
    owed: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """GPU-seconds by account."""
    raised: Mapping[int, Loan] = field(default_factory=lambda: MappingProxyType({}))
    """Pending jobs, by id, that the order in force has ahead of other accounts' jobs."""
    running: Mapping[int, Loan] = field(default_factory=lambda: MappingProxyType({}))
    """Jobs that started so; `seconds` is what they were charged."""

    def raising(self, raised: Mapping[int, Loan]) -> "Borrowed":
        """With these raised jobs: those of the order that is in force from now on."""
        return Borrowed(self.time, self.owed, raised, self.running)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "time": self.time,
            "owed": dict(self.owed),
            "raised": {str(job): list(loan) for job, loan in self.raised.items()},
            "running": {str(job): list(loan) for job, loan in self.running.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Of `as_dict`.

        Raises:
            ValueError, TypeError, KeyError: it is not of this form.
        """
        raised, running = (
            {
                int(job): Loan(int(submit), str(account), float(seconds))
                for job, (submit, account, seconds) in these.items()
            }
            for these in (data["raised"], data["running"])
        )
        owed = {str(account): float(seconds) for account, seconds in data["owed"].items()}
        return cls(float(data["time"]), owed, raised, running)


NOTHING: Final = Borrowed()
