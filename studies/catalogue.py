"""What is evaluated, and what is aimed at."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rltuned.config import PlacementSection
from rltuned.evaluate.settings import PEERS, PLAIN, STRICT, EvaluationSettings
from rltuned.evaluate.windows import Split

WINDOWS: Final = 30
QUICK_WINDOWS: Final = 8
"""Of `make results-quick`: enough to see that everything works, too few to say anything."""
SEED: Final = 7
NOISY: Final = "noisy:1.5"
GUARD: Final = 1.05
"""Slowdown and p99 wait over those of the best plain rule, at most: no metric may be bought with another."""
LONGEST: Final = 1.2
"""Longest wait of a window over FIFO's, at most."""
STRICT_TARGETS: Final = {"wait_mean": 0.10, "bsld_mean": 0.05, "jct_mean": 0.30}
"""Over `fifo-strict`, on the paper's Philly protocol."""


@dataclass(frozen=True)
class Trace:
    """A trace, with the cluster that its jobs are run on, and what is aimed at there."""

    name: str
    """Also of the models that belong to it."""
    file: str
    cluster: str
    window: int
    estimates: tuple[str, ...]
    noisy: float | None = None
    """Mean wait over the best plain rule's at σ = 1.5, at most."""


TRACES: Final = (
    Trace("philly", "philly.csv.gz", "20x8", 1024, ("true", NOISY), noisy=0.90),
    Trace("philly", "philly.csv.gz", "4x8", 256, ("true", NOISY), noisy=0.90),
    Trace("venus", "helios-venus.csv.gz", "16x8", 256, ("true", NOISY), noisy=0.88),
    Trace("pai", "alibaba-pai.csv.gz", "8x8", 256, ("true", NOISY), noisy=0.85),
    Trace("hpc2n", "hpc2n.swf.gz", "240x1", 1024, ("limit",)),
    Trace("sdsc-blue", "sdsc-blue.swf.gz", "144x8", 1024, ("limit",)),
)


@dataclass(frozen=True)
class Protocol:
    """The same windows of the same jobs for every policy, and the targets (None: there is none)."""

    trace: Trace
    estimates: str
    wait: float
    """Mean wait over the best plain rule's, at most."""
    unseen: float
    """The same, of a model that was never trained on the trace."""
    multifactor: float | None
    """Mean wait over that of Slurm's own order with the usual weights, at most."""
    unseen_multifactor: float | None
    strict: bool
    """Whether there are targets against `fifo-strict`: true run times on Philly, as in the paper."""

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.trace.name}-{self.trace.cluster}-{self.estimates.split(':')[0]}"

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
        )


def protocols() -> Iterator[Protocol]:
    """All of them, in the order of the page."""
    for trace in TRACES:
        for estimates in trace.estimates:
            noisy = estimates == NOISY
            wait, unseen = {"true": (0.98, 1.00), NOISY: (trace.noisy or 0.95, 0.95)}.get(estimates, (0.90, 0.90))
            yield Protocol(
                trace,
                estimates,
                wait=wait,
                unseen=unseen,
                multifactor=0.55 if noisy else None,
                unseen_multifactor=0.65 if noisy else None,
                strict=trace.name == "philly" and estimates == "true",
            )


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
    MILP = "milp"
    """The integer program with its first K jobs, without rollouts: one thing changed at a time."""
    BASE = "base"
    """A model that was trained with another base policy, without rollouts."""
    RAW = "raw"
    """That of the base policy `RAW_BASE`, with a network that sees only what a job says of itself."""


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
    top_k: int = PlacementSection().top_k
    rollout: bool = True

    @property
    def name(self) -> str:
        """Of its file."""
        tail = {
            Part.MAIN: "",
            Part.MILP: f"-{self.top_k}",
            Part.PEER: f"-{self.policies[0]}",
            Part.BASE: f"-{(self.model or '').rpartition('/')[2].removesuffix('.json')}",
        }.get(self.part, "")
        return self.protocol.name + ("" if self.part is Part.MAIN else f"-{self.part}{tail}")


TOP_K: Final = (8, 16, 64, 256)
LEARNING: Final = ("philly", "venus", "pai")
"""Traces of deep learning, which is what the peers are compared on."""
NETWORK: Final = "rl, no rollouts"
"""The label of what the general model gives by itself."""
BASES: Final = ("fifo", "sjf", "f1", "multifactor")
"""Base policies that the authors' training takes (`--sched_algo`: FCFS, SJF, F1, Slurm); the shipped model has SAF."""
RAW_BASE: Final = "fifo"
"""Beside it the network stands alone: what its columns are worth shows in its order."""
RAW_COLUMNS: Final = ("requested_time", "requested_limit", "requested_gpus")
"""What a job says of itself; the other columns are made of it, of the time, and of the state of the cluster."""


def studies() -> Iterator[Study]:
    """All of them: first what every reader wants to know."""
    every = list(protocols())
    for protocol in every:
        yield Study(protocol, Part.MAIN, (STRICT, *PLAIN, "rl"), "rl")
    for protocol in every:
        yield Study(protocol, Part.ORDER, ("rl",), NETWORK, rollout=False)
    for protocol in every:
        trace = protocol.trace.name
        yield Study(protocol, Part.OWN, ("rl",), "rl, own model, no rollouts", f"{trace}.json", rollout=False)
        # On the large Philly cluster it is the model of the small one again, and takes as long as all others together.
        if protocol.trace.cluster != "20x8":
            yield Study(protocol, Part.UNSEEN, ("rl",), "rl, trace unseen", f"unseen/{trace}.json")
        for peer in PEERS if trace in LEARNING else ():
            yield Study(protocol, Part.PEER, (peer,), peer, f"peers/{peer}-{trace}.json")
    for protocol in every:
        if protocol.trace.window == 256 and protocol.estimates == NOISY:
            for top_k in TOP_K:
                label = f"rl+milp, K = {top_k}, no rollouts"
                yield Study(protocol, Part.MILP, ("rl+milp",), label, top_k=top_k, rollout=False)
        if protocol.trace.window == 256 and protocol.estimates == "true":
            for base in BASES:
                yield Study(protocol, Part.BASE, ("rl",), base_label(base), f"bases/{base}.json", rollout=False)
            raw = f"bases/{RAW_BASE}-raw.json"
            yield Study(protocol, Part.RAW, ("rl",), f"{base_label(RAW_BASE)}, raw columns", raw, rollout=False)


def base_label(base: str) -> str:
    """Of a model that was trained with this base policy."""
    return f"rl, base {base}, no rollouts"
