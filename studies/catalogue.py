"""What is evaluated."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rltuned.lab.evaluate.evaluation_settings import LEARNED, PLAIN, STRICT, EvaluationSettings, Start
from rltuned.lab.evaluate.windows import Split
from rltuned.simulate.values import Backfill, Fit
from studies.peers import PEERS

WINDOWS: Final = 30
SEED: Final = 7
NOISY: Final = "noisy:1.5"
HISTORY: Final = "history"


@dataclass(frozen=True)
class Trace:
    """A trace, with the cluster that its jobs are run on."""

    name: str
    """Also of the peers that belong to it."""
    file: str
    cluster: str
    window: int
    estimates: tuple[str, ...]
    windows: int = WINDOWS
    """Fewer where more would be the same jobs again, or days of simulation."""
    seen: bool = False
    """Whether the general model was trained on these very jobs: the page says so."""

    @property
    def nodes(self) -> str:
        """Of the cluster: 16x8."""
        return self.cluster.partition(":")[0]


TRACES: Final = (
    Trace("philly", "philly.csv.gz", "20x8", 1024, ("true", NOISY)),
    Trace("philly", "philly.csv.gz", "4x8", 256, ("true", NOISY)),
    Trace("venus", "helios-venus.csv.gz", "16x8", 256, ("true", NOISY)),
    Trace("pai", "alibaba-pai.csv.gz", "8x8", 256, ("true", NOISY)),
    # Its test part has 1,619 jobs. It is cut out of the training part of the other trace of Venus.
    Trace("venus", "helios-venus-users.csv.gz", "16x8:v100", 256, (HISTORY,), 12, seen=True),
    Trace("hpc2n", "hpc2n.swf.gz", "240x1", 1024, (HISTORY,), 8),
    Trace("hpc2n", "hpc2n.swf.gz", "240x1", 1024, ("limit",)),
    Trace("sdsc-blue", "sdsc-blue.swf.gz", "144x8", 1024, (HISTORY,), 8),
    Trace("sdsc-blue", "sdsc-blue.swf.gz", "144x8", 1024, ("limit",)),
)


@dataclass(frozen=True)
class Protocol:
    """The same windows of the same jobs for every policy."""

    trace: Trace
    estimates: str
    easy: bool
    """EASY backfill and best fit, the protocol of the literature; else Slurm's own backfill and placement."""
    windows: int = WINDOWS
    paper: bool = False
    """Only for the tables of the paper, in no other table of the page."""

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
            placement=Fit.BEST if self.easy else Fit.SLURM,
        )


def protocols() -> Iterator[Protocol]:
    """All of them, in the order of the page: first Slurm as it is. What finished jobs tell is tried there only."""
    for easy in (False, True):
        for trace in TRACES:
            for estimates in trace.estimates:
                if estimates != HISTORY or not easy:
                    yield Protocol(trace, estimates, easy=easy, windows=trace.windows)


PAPER: Final = tuple(
    Protocol(Trace(name, file, cluster, window, ("true",)), "true", easy=True, windows=windows, paper=True)
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
    PEER = "peer"
    """A published peer, in the place of `rl` (`studies.peers`)."""


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
        return self.protocol.settings(self.policies, min(windows, self.protocol.windows))

    @property
    def name(self) -> str:
        """Of its file."""
        tail = f"-{self.label}" if self.part is Part.PEER else ""
        return self.protocol.name + ("" if self.part is Part.MAIN else f"-{self.part}{tail}")


LEARNING: Final = ("philly", "venus", "pai")
"""Traces of deep learning, which is what the peers are compared on."""


def studies() -> Iterator[Study]:
    """All of them: first what every reader wants to know."""
    every = list(protocols())
    for protocol in every:
        yield Study(protocol, Part.MAIN, (STRICT, *PLAIN, "rl"), "rl")
    for protocol in every:
        for peer in PEERS if protocol.trace.name in LEARNING and protocol.estimates != HISTORY else ():
            yield Study(protocol, Part.PEER, ("rl",), peer)
    # What stands beside the paper's cells, and is nothing else's.
    *sequences, many = PAPER
    for protocol in sequences:
        yield Study(protocol, Part.MAIN, (STRICT, *PLAIN, "rl"), "rl")
        for peer in PEERS:
            yield Study(protocol, Part.PEER, ("rl",), peer)
    yield Study(many, Part.MAIN, ("saf", "rl"), "rl")
