"""What is asked for."""

import enum
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rltuned.core.config import DEFAULT_MODEL
from rltuned.core.errors import EvaluationError
from rltuned.core.objective import DEFAULT, Objective
from rltuned.core.scheduler import SchedulerParameters
from rltuned.decide.rank.multifactor import Weights
from rltuned.lab.evaluate.windows import FRACTIONS, Split
from rltuned.simulate.values import Backfill, Fit, SimulationSettings
from rltuned.simulate.workload.simulated_estimates import parse_estimates


class Start(enum.StrEnum):
    """What the cluster does when the window's first job comes."""

    IDLE = "idle"
    """Nothing."""
    WARM = "warm"
    """It runs and queues what is left of the jobs before, by FIFO, the same for every policy."""


OWN: Final = "multifactor"
"""Slurm's own order."""
PLAIN: Final = ("fifo", "sjf", "saf", "wfp3", "unicep", "f1", OWN)
"""Rules that an admin could switch on."""
STRICT: Final = "fifo-strict"
"""FIFO of the paper: no backfill and worst fit, whatever the flags say."""
LEARNED: Final = ("rl",)
"""The model, as the daemon serves it. A policy that ends in ".json" is the model of that manifest, served likewise."""
AGAIN: Final = "multifactor-again"
"""Slurm's own order once more, each job submitted up to a minute later: what differs from `multifactor` is chance."""
ASK_TUNE: Final = "`rltuned tune` finds the best that slurm.conf alone can do."
"""Said beside each gain."""
POLICIES: Final = (STRICT, *PLAIN, *LEARNED, AGAIN)

DEFAULT_POLICIES: Final = (STRICT, *PLAIN, "rl")
_SHARE: Final = re.compile(r"0?\.[0-9]{1,4}|0|1(\.0)?")


def served(policy: str) -> tuple[str, float | None]:
    """What ranks, and the share of its wait that a job may lend (`lend.share`), of "saf:0.2". None: as for "saf", which
    then has nothing of the daemon's around it; `rl` and models have its default.
    """
    name, colon, share = policy.rpartition(":")
    if not colon or _SHARE.fullmatch(share) is None:
        return policy, None
    return name, float(share)


def with_share(policy: str, share: float) -> str:
    """The name of a policy that is served with this share: what `served` understands."""
    return f"{policy}:{round(share, 4):g}"


def is_learned(policy: str) -> bool:
    """Whether it is a model."""
    name, _ = served(policy)
    return name in LEARNED or name.endswith(".json")


def _there_is(policy: str) -> bool:
    name, share = served(policy)
    return is_learned(policy) or (policy in POLICIES if share is None else name in PLAIN and name != OWN)


@dataclass(frozen=True)
class EvaluationSettings:
    """One evaluation. Everything here changes the numbers; where they go and how many processes work does not."""

    trace: str
    """Path of the trace, as given."""
    cluster: str
    """As `--cluster` takes it; "" where Slurm itself is asked (`--from-slurm`)."""
    window: int = 1024
    """Jobs of a window."""
    windows: int = 30
    seed: int = 7
    """Draws the windows, the time limits and errors of the estimates, and the resamples of the intervals."""
    policies: tuple[str, ...] = DEFAULT_POLICIES
    estimates: str = "true"
    split: Split = Split.ALL
    backfill: Backfill = Backfill.SLURM
    placement: Fit = Fit.SLURM
    scheduler: str = ""
    """SchedulerParameters of the simulated Slurm, as slurm.conf spells them; "" as one that says nothing."""
    start: Start = Start.IDLE
    warm_jobs: int | None = None
    """Jobs before the window that a warm start simulates; None: as many as the window has."""
    model: str = DEFAULT_MODEL
    """Of `rl`: a shipped model's name, or the path of a manifest."""
    weights: str = ""
    """As `multifactor.Weights.parse` takes them: Slurm's own order, which `rl` moves jobs within, and over which
    accounts win or lose. "": `multifactor` has the usual ones, and `rl` moves jobs within the order of submission.
    """
    objective: Objective = DEFAULT
    """What J weighs, and what models are told to want."""
    skip_bad: bool = False
    gate: bool = False
    """Windows are recent and share no job, and a verdict is reached (`rltuned.lab.evaluate.gate`)."""
    from_slurm: bool = False
    """Cluster and scheduler parameters are those that Slurm shows; `cluster` is ""."""
    from_sacct: float | None = None
    """Days of the site's own jobs instead of a trace, which is then ""."""

    def __post_init__(self) -> None:
        """Raises:
        EvaluationError: a policy that does not exist or is named twice, or a number that makes no sense.
        ConfigError: estimates or scheduler parameters that do not exist.
        """
        if unknown := [name for name in self.policies if not _there_is(name)]:
            raise EvaluationError(f"there is no policy '{unknown[0]}'; there are {', '.join(POLICIES)}")
        if not self.policies or len(set(self.policies)) < len(self.policies):
            raise EvaluationError(f"--policies: each policy once, and at least one, not '{','.join(self.policies)}'")
        for name, value in (("--window", self.window), ("--windows", self.windows)):
            if value < 1:
                raise EvaluationError(f"{name}: {value} is not above 0")
        if self.weights:
            Weights.parse(self.weights)
        if self.seed < 0:
            raise EvaluationError(f"--seed: {self.seed} is below 0")
        parse_estimates(self.estimates)
        SchedulerParameters.parse(self.scheduler)

    @property
    def simulated(self) -> SimulationSettings:
        """The simulated Slurm, of every policy but `fifo-strict`."""
        chosen = SimulationSettings.of_cluster(SchedulerParameters.parse(self.scheduler))
        backfill = chosen.backfill if self.backfill is Backfill.SLURM else self.backfill
        return replace(chosen, backfill=backfill, fit=self.placement)

    @property
    def past(self) -> int:
        """How many jobs before the window are simulated."""
        if self.start is Start.IDLE:
            return 0
        return self.window if self.warm_jobs is None else self.warm_jobs

    @property
    def shares(self) -> str:
        """Those of the policies, as `--shares` takes them."""
        shares = {share for _, share in map(served, self.policies) if share is not None}
        return ",".join(f"{share:g}" for share in sorted(shares))

    @property
    def command(self) -> str:
        """The command line that gives these numbers again, in one spelling: outputs and processes are left out."""
        return command_line("gate" if self.gate else "evaluate", self.flags())

    def as_dict(self) -> dict[str, Any]:
        """By flag, for the JSON and to tell two evaluations apart."""
        flags = {flag.removeprefix("--").replace("-", "_"): value for flag, value, _ in self.flags()}
        flags["split_fractions"] = list(FRACTIONS[self.split])
        return {
            name: str(value) if isinstance(value, enum.Enum | Objective) else value for name, value in flags.items()
        }

    def flags(self) -> tuple[tuple[str, Any, Any], ...]:
        """Flag, value, and the default that need not be said; None: the daemon's configuration may have another."""
        return (
            ("--trace", self.trace, None),
            ("--cluster", self.cluster, None),
            ("--window", self.window, None),
            ("--windows", self.windows, None),
            ("--seed", self.seed, None),
            ("--shares", self.shares, None) if self.gate else ("--policies", ",".join(self.policies), None),
            ("--estimates", self.estimates, None),
            ("--split", self.split.value, Split.ALL.value),
            ("--backfill", self.backfill.value, Backfill.SLURM.value),
            ("--placement", self.placement.value, Fit.SLURM.value),
            ("--scheduler", self.scheduler, ""),
            ("--start", self.start.value, None if self.gate else Start.IDLE.value),
            ("--warm-jobs", self.warm_jobs, None),
            ("--model", self.model, None if self.gate else DEFAULT_MODEL),
            ("--weights", self.weights, ""),
            ("--objective", self.objective, None if self.gate or self.from_slurm else DEFAULT),
            ("--skip-bad", self.skip_bad, False),
            ("--from-slurm", self.from_slurm, False),
            ("--from-sacct", self.from_sacct, None),
        )


def command_line(command: str, flags: Iterable[tuple[str, Any, Any]]) -> str:
    """Of `rltuned`, with flags as `EvaluationSettings.flags` has them."""
    words = ["rltuned", command]
    for flag, value, default in flags:
        if value in (default, ""):
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-"))
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def from_options(options: Mapping[str, Any]) -> EvaluationSettings:
    """Of the command line's options, by their names; absent ones (None) keep their default.

    Raises:
        EvaluationError, ConfigError: as `EvaluationSettings`.
    """
    kinds: dict[str, Callable[[str], Any]] = {
        "policies": lambda text: tuple(name.strip() for name in text.split(",")),
        "split": Split,
        "backfill": Backfill,
        "placement": Fit,
        "start": Start,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return EvaluationSettings(**{name: kinds[name](v) if name in kinds else v for name, v in given.items()})
