"""What is evaluated, and what is aimed at."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rltuned.evaluate.evaluation_settings import LEARNED, PLAIN, STRICT, EvaluationSettings, Placement, Start
from rltuned.evaluate.windows import Split
from rltuned.simulate.values import Backfill
from studies.peers import PEERS

WINDOWS: Final = 30
QUICK_WINDOWS: Final = 8
"""Of `make results-quick`: enough to see that everything works, too few to say anything."""
SEED: Final = 7
NOISY: Final = "noisy:1.5"
HISTORY: Final = "history"
GUARD: Final = 1.02
"""Slowdown and p99 wait over those of the best plain rule, at most: no metric may be bought with another."""
LONGEST: Final = 1.2
"""Longest wait of a window over FIFO's, at most."""


@dataclass(frozen=True)
class Aims:
    """What is aimed at: the mean wait over the best plain rule's, at most."""

    true: float = 0.95
    """With true run times; of the users' limits, too."""
    noisy: float = 0.94
    """At σ = 1.5, under Slurm's own backfill and placement."""
    easy: float = 0.94
    """At σ = 1.5, with EASY and best fit."""
    multifactor: float = 0.50
    """The same over the mean wait of Slurm's own order, under Slurm's own backfill and placement."""


@dataclass(frozen=True)
class Trace:
    """A trace, with the cluster that its jobs are run on, and what is aimed at there."""

    name: str
    """Also of the peers that belong to it."""
    file: str
    cluster: str
    window: int
    estimates: tuple[str, ...]
    aims: Aims
    windows: int = WINDOWS
    """Fewer where more would be the same jobs again, or days of simulation."""
    seen: bool = False
    """Whether the general model was trained on these very jobs: the page says so."""

    @property
    def nodes(self) -> str:
        """Of the cluster: 16x8."""
        return self.cluster.partition(":")[0]


_PHILLY: Final = Aims(true=0.90, noisy=0.92, easy=0.86, multifactor=0.36)

TRACES: Final = (
    Trace("philly", "philly.csv.gz", "20x8", 1024, ("true", NOISY), _PHILLY),
    Trace("philly", "philly.csv.gz", "4x8", 256, ("true", NOISY), _PHILLY),
    Trace("venus", "helios-venus.csv.gz", "16x8", 256, ("true", NOISY), Aims(0.92, 0.94, 0.87, 0.42)),
    Trace("pai", "alibaba-pai.csv.gz", "8x8", 256, ("true", NOISY), Aims(0.94, 0.87, 0.88, 0.26)),
    # Its test part has 1,619 jobs. It is cut out of the training part of the other trace of Venus.
    Trace("venus", "helios-venus-users.csv.gz", "16x8:v100", 256, (HISTORY,), Aims(), 12, seen=True),
    Trace("hpc2n", "hpc2n.swf.gz", "240x1", 1024, (HISTORY,), Aims(), 8),
    Trace("hpc2n", "hpc2n.swf.gz", "240x1", 1024, ("limit",), Aims()),
    Trace("sdsc-blue", "sdsc-blue.swf.gz", "144x8", 1024, (HISTORY,), Aims(), 8),
    Trace("sdsc-blue", "sdsc-blue.swf.gz", "144x8", 1024, ("limit",), Aims()),
)


@dataclass(frozen=True)
class Protocol:
    """The same windows of the same jobs for every policy, and the targets (None: there is none)."""

    trace: Trace
    estimates: str
    easy: bool
    """EASY backfill and best fit, the protocol of the literature; else Slurm's own backfill and placement."""
    windows: int = WINDOWS
    paper: bool = False
    """Only for the tables of the paper: no targets, and no table of its own on the page."""

    @property
    def name(self) -> str:
        """Of its files."""
        if self.paper:
            return f"paper-{self.trace.name}-{self.trace.cluster}-{self.trace.window}"
        name = f"{self.trace.name}-{self.trace.nodes}-{self.estimates.partition(':')[0]}"
        return f"{name}-easy" if self.easy else name

    @property
    def scheduler(self) -> str:
        """Of the simulated cluster, in words."""
        return "EASY backfill and best fit" if self.easy else "Slurm's own backfill and placement"

    @property
    def wait(self) -> float:
        """Mean wait over the best plain rule's, at most."""
        aims = self.trace.aims
        if self.estimates != NOISY:
            return aims.true
        return aims.easy if self.easy else aims.noisy

    @property
    def multifactor(self) -> float | None:
        """Mean wait over that of Slurm's own order with the usual weights, at most; None: there is no target."""
        return None if self.easy or self.estimates != NOISY else self.trace.aims.multifactor

    def settings(self, policies: tuple[str, ...], windows: int) -> EvaluationSettings:
        """Without any models; the trace by its name alone."""
        return EvaluationSettings(
            trace=self.trace.file,
            cluster=self.trace.cluster,
            window=self.trace.window,
            windows=windows,
            seed=SEED,
            policies=policies,
            estimates=self.estimates,
            split=Split.TEST,
            start=Start.WARM if self.estimates == HISTORY else Start.IDLE,
            backfill=Backfill.EASY if self.easy else Backfill.SLURM,
            placement=Placement.BEST if self.easy else Placement.SLURM,
        )


def protocols() -> Iterator[Protocol]:
    """All of them, in the order of the page: first Slurm as it is. What finished jobs tell is tried there only."""
    for easy in (False, True):
        for trace in TRACES:
            for estimates in trace.estimates:
                if estimates != HISTORY or not easy:
                    yield Protocol(trace, estimates, easy=easy, windows=trace.windows)


PAPER: Final = tuple(
    Protocol(Trace(name, file, cluster, window, ("true",), Aims()), "true", easy=True, windows=windows, paper=True)
    for name, file, cluster, window, windows in (
        ("venus", "helios-venus.csv.gz", "16x8", 1024, 10),
        ("pai", "alibaba-pai.csv.gz", "8x8", 1024, 10),
        # Its test part has 15,059 jobs, so more windows would be the same jobs again.
        ("philly", "philly.csv.gz", "20x8", 10_000, 3),
    )
)
"""The paper's own sequences, as far as `protocols` has them not: 10 of 1,024 jobs, and 10,000 jobs at once."""


class Part(enum.StrEnum):
    """What a study is for."""

    MAIN = "main"
    """All plain rules and the general model."""
    ORDER = "order"
    """The general model without rollouts: what the network alone gives."""
    PEER = "peer"
    """A published peer, in the place of `rl`, without rollouts (`studies.peers`)."""


@dataclass(frozen=True)
class Study:
    """One evaluation. Those of one protocol have the same windows, and so can be compared."""

    protocol: Protocol
    part: Part
    policies: tuple[str, ...]
    label: str
    """Of its learned policy, in tables."""

    @property
    def peer(self) -> str | None:
        """Path of a peer's model below the directory of models; None: the general model is measured."""
        return f"peers/{self.label}-{self.protocol.trace.name}.json" if self.part is Part.PEER else None

    @property
    def labels(self) -> dict[str, str]:
        """Of its policies in tables, by their names."""
        if self.part is Part.PEER:
            return {self.label: self.label}
        return {name: self.label if name in LEARNED else name for name in self.policies}

    def settings(self, windows: int) -> EvaluationSettings:
        """Without its model; the trace by its name alone. `windows`: at most."""
        plain = self.protocol.settings(self.policies, min(windows, self.protocol.windows))
        return replace(plain, rollout=self.part is Part.MAIN)

    @property
    def name(self) -> str:
        """Of its file."""
        tail = f"-{self.label}" if self.part is Part.PEER else ""
        return self.protocol.name + ("" if self.part is Part.MAIN else f"-{self.part}{tail}")


LEARNING: Final = ("philly", "venus", "pai")
"""Traces of deep learning, which is what the peers are compared on."""
NETWORK: Final = "rl, no rollouts"
"""The label of what the general model gives by itself."""


def studies() -> Iterator[Study]:
    """All of them: first what every reader wants to know."""
    every = list(protocols())
    for protocol in every:
        yield Study(protocol, Part.MAIN, (STRICT, *PLAIN, "rl"), "rl")
    for protocol in every:
        yield Study(protocol, Part.ORDER, ("rl",), NETWORK)
    for protocol in every:
        for peer in PEERS if protocol.trace.name in LEARNING and protocol.estimates != HISTORY else ():
            yield Study(protocol, Part.PEER, ("rl",), peer)
    # What stands beside the paper's cells, and is nothing else's.
    *sequences, many = PAPER
    for protocol in sequences:
        yield Study(protocol, Part.MAIN, (STRICT, *PLAIN, "rl"), "rl")
        yield Study(protocol, Part.ORDER, ("rl",), NETWORK)
        for peer in PEERS:
            yield Study(protocol, Part.PEER, ("rl",), peer)
    yield Study(many, Part.MAIN, ("saf", "rl"), "rl")
