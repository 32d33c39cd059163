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
    """Also of the models that belong to it."""
    file: str
    cluster: str
    window: int
    estimates: tuple[str, ...]
    aims: Aims
    windows: int = WINDOWS
    """Fewer where more would be the same jobs again, or days of simulation."""
    seen: bool = False
    """Whether the general model was trained on these very jobs: the page then shows the one that never saw them."""

    @property
    def nodes(self) -> str:
        """Of the cluster: 16x8."""
        return self.cluster.partition(":")[0]


UNSEEN: Final = Aims(true=0.98)
"""Of a model that was never trained on the trace."""
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

    def wait(self, *, unseen: bool) -> float:
        """Mean wait over the best plain rule's, at most."""
        aims = UNSEEN if unseen else self.trace.aims
        if self.estimates != NOISY:
            return aims.true
        return aims.easy if self.easy else aims.noisy

    def multifactor(self, *, unseen: bool) -> float | None:
        """Mean wait over that of Slurm's own order with the usual weights, at most; None: there is no target."""
        if self.easy or self.estimates != NOISY:
            return None
        return (UNSEEN if unseen else self.trace.aims).multifactor

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
    OWN = "own"
    """A model of this trace alone, without rollouts: is it better than the general one?"""
    UNSEEN = "unseen"
    """A model of all other traces."""
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
    model: str | None = None
    """Path below the directory of models; None: the general model."""
    rollout: bool = True

    @property
    def labels(self) -> dict[str, str]:
        """Of its policies in tables, by their names."""
        if self.part is Part.PEER:
            return {self.label: self.label}
        return {name: self.label if name in LEARNED else name for name in self.policies}

    def settings(self, windows: int) -> EvaluationSettings:
        """Without its model; the trace by its name alone. `windows`: at most."""
        plain = self.protocol.settings(self.policies, min(windows, self.protocol.windows))
        return replace(plain, rollout=self.rollout)

    @property
    def name(self) -> str:
        """Of its file."""
        tail = f"-{self.label}" if self.part is Part.PEER else ""
        return self.protocol.name + ("" if self.part is Part.MAIN else f"-{self.part}{tail}")


LEARNING: Final = ("philly", "venus", "pai")
"""Traces of deep learning, which is what the peers are compared on."""
TRACE_UNSEEN: Final = "rl, trace unseen"
"""The label of a model of all other traces."""
NETWORK: Final = "rl, no rollouts"
"""The label of what the general model gives by itself."""


def studies() -> Iterator[Study]:
    """All of them: first what every reader wants to know."""
    every = list(protocols())
    for protocol in every:
        yield Study(protocol, Part.MAIN, (STRICT, *PLAIN, "rl"), "rl")
    for protocol in every:
        yield Study(protocol, Part.ORDER, ("rl",), NETWORK, rollout=False)
    for protocol in every:
        trace = protocol.trace.name
        if protocol.easy:
            yield Study(protocol, Part.OWN, ("rl",), "rl, own model, no rollouts", f"{trace}.json", rollout=False)
        # On the large Philly cluster it is the model of the small one again, and takes as long as all others together.
        # Under Slurm as it is, only what has a target or says something new: rollouts take most of the time.
        new = protocol.easy or protocol.estimates == NOISY or protocol.trace.seen
        if protocol.trace.cluster != "20x8" and new:
            yield Study(protocol, Part.UNSEEN, ("rl",), TRACE_UNSEEN, f"unseen/{trace}.json")
        for peer in PEERS if trace in LEARNING and protocol.estimates != HISTORY else ():
            yield Study(protocol, Part.PEER, ("rl",), peer, f"peers/{peer}-{trace}.json", rollout=False)
    yield from _of_the_paper()


def _of_the_paper() -> Iterator[Study]:
    """What stands beside the paper's cells, and is nothing else's."""
    *sequences, many = PAPER
    for protocol in sequences:
        yield Study(protocol, Part.MAIN, (STRICT, *PLAIN, "rl"), "rl")
        yield Study(protocol, Part.ORDER, ("rl",), NETWORK, rollout=False)
        for peer in PEERS:
            yield Study(protocol, Part.PEER, ("rl",), peer, f"peers/{peer}-{protocol.trace.name}.json", rollout=False)
    yield Study(many, Part.MAIN, ("saf", "rl"), "rl")
