"""Answers to "when does it start?", from what the daemon's last forecast says."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rltuned.decide.decision import ProbeRecord

MOST_ALTERNATIVES: Final = 4
_SOONER: Final = 0.8
"""An alternative is named if its median wait is at most this share of what was asked for."""
_SOON: Final = 300.0  # seconds: nothing starts noticeably sooner than what starts this soon


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
    if found is not None and _middle(found) > _SOON:
        for probe in sorted(probes, key=lambda one: (_middle(one), tuple(-part for part in _size(one)))):
            less = probe.partition == found.partition and _no_more(_size(probe), _size(found))
            useful = asked.gpus == 0 or probe.gpus > 0
            if less and useful and probe != found and _middle(probe) <= _SOONER * _middle(found):
                sooner.append(probe)
    return StartOffer(asked, found, tuple(_telling(sooner)[:MOST_ALTERNATIVES]), outcomes, not_simulated)


def _telling(sooner: Sequence[ProbeRecord]) -> list[ProbeRecord]:
    """Without those that ask for less than another one and start no sooner; the most useful ones first."""
    kept: list[ProbeRecord] = []
    for probe in sooner:
        worse = any(
            other is not probe and _middle(other) <= _middle(probe) + _SOON and _no_more(_size(probe), _size(other))
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
