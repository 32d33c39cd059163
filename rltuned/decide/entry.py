"""An entry of the decision log: what one cycle saw, wanted and did, and what came of it (docs/good-for-us.md).

One line of JSON. It has numbers and ids, names of partitions, QOS and nodes, and no text of users: no job names, no
comments, no names of users.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from rltuned.core.changes import Outcome
from rltuned.core.config import Stage
from rltuned.core.tables import Snapshot
from rltuned.decide.decision import DecisionRecord, Numbers, WindowColumns
from rltuned.decide.raising import Stop
from rltuned.decide.scope import Veto

FORMAT: Final = 2
MAX_TEXT: Final = 500  # characters of a sentence that are kept
_DIGITS: Final = 3
"""Of seconds and GPUs in a kept decision: milliseconds say nothing of a queue, and cost a third of the log."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The cluster as a cycle read it."""

    pending: int
    running: int
    gpus: int  # of usable nodes
    gpus_used: int  # of those, in use
    oldest: float
    """Seconds that the longest waiting pending job has been eligible; 0 where none waits."""
    skipped: int

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """What a snapshot shows."""
        jobs, nodes = snapshot.jobs, snapshot.nodes
        usable, since = nodes.usable, jobs.eligible_time[jobs.pending]
        since = since[since <= snapshot.time]  # neither unknown nor in the future
        return cls(
            pending=len(jobs.pending),
            running=len(jobs.running),
            gpus=int(nodes.gpus[usable].sum()),
            gpus_used=int((nodes.gpus - nodes.gpus_free)[usable].sum()),
            oldest=round(float(snapshot.time - since.min()), _DIGITS) if len(since) else 0.0,
            skipped=sum(snapshot.unread.counts.values()),
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a cycle decided, in numbers. All are counts of jobs unless they say otherwise."""

    policy: str
    managed: int
    raised: int  # ahead of where Slurm alone has them
    changes: int
    stopped: Mapping[str, int]  # jobs that go no further ahead, by `raising.Stop` in lower case
    lent: float  # GPU-seconds that the waiting jobs have lent until now
    vetoed: Mapping[Veto, int]
    trouble: str  # why no start times are forecast although they should be

    @classmethod
    def of(cls, record: DecisionRecord) -> Self:
        """The numbers of a record."""
        stops = Counter(record.jobs.stop)
        return cls(
            policy=record.policy,
            managed=len(record.jobs),
            raised=len(record.raises),
            changes=len(record.changes),
            stopped={stop.name.lower(): stops[stop] for stop in Stop if stop and stops[stop]},
            lent=round(sum(one.lent for one in record.lent.values()), _DIGITS),
            vetoed={veto: len(ids) for veto, ids in record.vetoed.items() if ids},
            trouble=record.forecast_trouble[:MAX_TEXT],
        )


@dataclass(frozen=True, kw_only=True)
class CycleEntry:
    """One cycle, as a line of the decision log has it. `time` comes early and `decision` last: a reader need not parse
    what it skips.
    """

    format: Literal[2] = FORMAT
    time: float  # of its end, epoch seconds
    outcome: str
    """done, shed, waiting, standby or failed (`controller.tell.states.CycleOutcome`)."""
    stage: Stage
    held_back: str  # why that is not the configured stage; "" where it is
    sentence: str
    seen: Seen | None  # None: the cluster could not be read
    wanted: Wanted | None  # None: nothing was planned
    results: Mapping[Outcome, int]
    """Number of changes by what became of them; empty where nothing was written."""
    restored: int
    seconds: Mapping[str, float]  # by phase, and `total`
    decision: DecisionRecord | None
    """The record without the features (`lean`); None: left out for its size."""


def lean(record: DecisionRecord) -> DecisionRecord:
    """The record without features, terms, start times and what Slurm showed of each job: a third of its size."""
    window = record.window
    small = WindowColumns(
        score=_rounded(window.score, 2 * _DIGITS),
        values=((),) * len(window),
        predicted=window.predicted,
        run_time=_rounded(window.run_time),
        time_limit=window.time_limit,
        gpus=_rounded(window.gpus),
    )
    jobs = replace(record.jobs, site=None)
    return replace(
        record, features=(), columns=(), reasons=(), left=None, starts=None, coefficients=None, jobs=jobs, window=small
    )


def _rounded(values: Numbers, digits: int = _DIGITS) -> Numbers:
    return tuple(round(value, digits) for value in values)
