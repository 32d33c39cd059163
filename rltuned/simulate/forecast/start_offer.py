"""Answers to "when does it start?", from what the daemon's last forecast says."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rltuned.core.wording import duration
from rltuned.decide.decision import LimitRecord, ProbeRecord

MOST_ALTERNATIVES: Final = 4
SOONER: Final = 0.8
"""An alternative starts noticeably sooner if its median wait is at most this share of what was asked for."""
SOON: Final = 300.0  # seconds: nothing starts noticeably sooner than what starts this soon


class Asked(NamedTuple):
    """A job that nobody has submitted. GPUs and CPUs in all, MiB per node, seconds; no partition: any."""

    partition: str
    nodes: int
    gpus: int
    cpus: int
    mem: float
    time_limit: float


class StartOffer(NamedTuple):
    """What is known of such a job."""

    asked: Asked
    found: ProbeRecord | None
    """The smallest request that was simulated and asks for no less. None: there is none."""
    sooner: tuple[ProbeRecord, ...]  # smaller requests, or shorter limits, that start sooner
    outcomes: int  # earlier forecasts that the intervals are calibrated on
    not_simulated: str  # what the forecast does not know of the site: a sentence

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        found = None if self.found is None else self.found._asdict()
        sooner = [probe._asdict() for probe in self.sooner]
        return self._asdict() | {"asked": self.asked._asdict(), "found": found, "sooner": sooner}


class JobAnswer(NamedTuple):
    """What is known of a pending job."""

    job_id: int
    time: float  # of the reading, epoch seconds
    start: tuple[float, float | None] | None
    """Between which times it is expected to start, with 80 %, epoch seconds. None: nothing is forecast."""
    likely: float | None  # as likely before as after it; None: beyond the horizon
    waits_for: str  # A sentence, or why nothing is forecast
    outcomes: int
    not_simulated: str


class OtherLimits(NamedTuple):
    """What the last forecast says of a pending job with shorter time limits than its own, seconds."""

    own: float | None  # None: it has none
    simulated: tuple[float, ...]  # of any job that asks for longer; in order
    sooner: tuple[LimitRecord, ...]  # of these, with which it starts noticeably sooner; in order


class LimitAnswer(NamedTuple):
    """What is known of a pending job if it had another time limit, everything else being the same."""

    job: JobAnswer  # with its own
    asked: float  # seconds, like its own
    own: float | None
    found: LimitRecord | None
    """Of the shortest limit that was simulated and is not below what was asked. None: it starts no sooner, or nothing
    says so."""
    meaning: str  # which of the two, in a sentence; "" where there is an answer

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        found = None if self.found is None else self.found._asdict()
        other = {"asked": self.asked, "time_limit": self.own, "found": found, "meaning": self.meaning}
        return self.job._asdict() | other


def with_limit(job: JobAnswer, asked: float, other: OtherLimits) -> LimitAnswer:
    """The answer for a job of which so much is known."""
    own = float("inf") if other.own is None else other.own
    shorter = [limit for limit in other.simulated if limit < own]
    covering = next((limit for limit in shorter if limit >= asked), None)
    found = next((one for one in other.sooner if one.time_limit == covering), None)
    if found is not None:
        meaning = ""
    elif job.start is None and not other.sooner:
        meaning = job.waits_for
    elif asked == own:
        meaning = "That is its own limit."
    elif asked > own:
        meaning = f"Its own is {duration(own)}: it starts no sooner with a longer one. How much later is not simulated."
    elif covering is not None:
        meaning = f"With up to {duration(covering)} it starts hardly sooner than with its own limit."
    elif shorter:
        meaning = f"Between {duration(shorter[-1])} and its own limit none was simulated."
    else:
        meaning = "No shorter limit was simulated for it."
    return LimitAnswer(job, asked, other.own, found, meaning)


def telling_limits(sooner: Sequence[LimitRecord]) -> list[LimitRecord]:
    """Of the limits with which a job starts sooner, the shortest first, those that gain more than any longer one; the
    longest first.
    """
    kept: list[LimitRecord] = []
    for one in reversed(sooner):
        if all(one.middle < other.middle - SOON for other in kept):
            kept.append(one)
    return kept


def offer_of(asked: Asked, probes: Sequence[ProbeRecord], outcomes: int, not_simulated: str = "") -> StartOffer:
    """The answer, from the probes of the last forecasts."""
    gpus, cpus = -(-asked.gpus // asked.nodes), -(-asked.cpus // asked.nodes)
    wanted = asked.nodes, gpus, cpus, asked.mem, asked.time_limit
    # In each partition the least that covers it; of these the one that starts first.
    best: dict[str, ProbeRecord] = {}
    for probe in sorted(probes, key=_size):
        has = probe.nodes, probe.gpus, probe.cpus, probe.mem, probe.time_limit
        if asked.partition in {"", probe.partition} and _no_more(wanted, has):
            best.setdefault(probe.partition, probe)
    found = min(best.values(), key=lambda probe: (_middle(probe), _size(probe)), default=None)
    sooner: list[ProbeRecord] = []
    if found is not None and _middle(found) > SOON:
        for probe in sorted(probes, key=lambda one: (_middle(one), tuple(-part for part in _size(one)))):
            less = probe.partition == found.partition and _no_more(_size(probe), _size(found))
            useful = asked.gpus == 0 or probe.gpus > 0
            if less and useful and probe != found and _middle(probe) <= SOONER * _middle(found):
                sooner.append(probe)
    return StartOffer(asked, found, tuple(_telling(sooner)[:MOST_ALTERNATIVES]), outcomes, not_simulated)


def _telling(sooner: Sequence[ProbeRecord]) -> list[ProbeRecord]:
    """Without those that ask for less than another one and start no sooner; the most useful ones first."""
    kept: list[ProbeRecord] = []
    for probe in sooner:
        worse = any(
            other is not probe and _middle(other) <= _middle(probe) + SOON and _no_more(_size(probe), _size(other))
            for other in sooner
        )
        if not worse:
            kept.append(probe)
    return kept


def _no_more(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the one asks for no more of anything than the other."""
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def _size(probe: ProbeRecord) -> tuple[float, ...]:
    return (probe.nodes * max(probe.gpus, 0), probe.nodes, probe.cpus, probe.mem, probe.time_limit)


def _middle(probe: ProbeRecord) -> float:
    """Seconds from when it was simulated; infinite beyond the horizon."""
    return float("inf") if probe.middle is None else probe.middle - probe.time
