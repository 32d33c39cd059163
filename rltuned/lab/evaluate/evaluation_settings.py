"""What is asked for: whose jobs on which cluster (`WhoseJobs`), what is simulated of them (`EvaluationSettings`)."""

import enum
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rltuned.core.config import DEFAULT_MODEL, Config
from rltuned.core.errors import EvaluationError
from rltuned.core.objective import DEFAULT, Objective
from rltuned.core.scheduler import SchedulerParameters
from rltuned.decide.rank.multifactor import Weights
from rltuned.lab.evaluate.windows import FRACTIONS, Split
from rltuned.simulate.values import Backfill, Fit, SimulationSettings
from rltuned.simulate.workload.simulated_estimates import EstimateKind, parse_estimates


class Start(enum.StrEnum):
    """What the cluster does when the window's first job comes."""

    IDLE = "idle"  # nothing
    WARM = "warm"  # it runs and queues what is left of the jobs before, by FIFO, the same for every policy
    REAL = "real"  # it runs and queues what it really did, where that is known of a job; else likewise


OWN: Final = "multifactor"  # Slurm's own order
PLAIN: Final = ("fifo", "sjf", "saf", "wfp3", "unicep", "f1", OWN)  # rules that an admin could switch on
STRICT: Final = "fifo-strict"  # FIFO of the paper: no backfill and worst fit, whatever the flags say
LEARNED: Final = ("rl",)
"""The model, as the daemon serves it. A policy that ends in ".json" is the model of that manifest, served likewise."""
AGAIN: Final = "multifactor-again"
"""Slurm's own order once more, each job submitted up to a minute later: what differs from `multifactor` is chance."""
ASK_TUNE: Final = "`rltuned tune` finds the best that slurm.conf alone can do."  # said beside each gain
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
class WhoseJobs:
    """Whose jobs, on which cluster: those of files, or the site's own."""

    trace: str = ""
    """Path of the trace, as given; "" with `from_sacct`."""
    cluster: str = ""
    """As `--cluster` takes it; "": the one that Slurm shows, with its scheduler and weights."""
    from_sacct: float | None = None  # days of the site's own jobs instead of a trace
    skip_bad: bool = False


@dataclass(frozen=True)
class EvaluationSettings(WhoseJobs):
    """What is simulated. Everything here changes the numbers; how many processes work does not."""

    window: int = 1024  # jobs of a window
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
    """Jobs before the window that are simulated; None: as many as the window has."""
    model: str = DEFAULT_MODEL  # of `rl`: a shipped model's name, or the path of a manifest
    weights: str = ""
    """As `multifactor.Weights.parse` takes them: Slurm's own order, which `rl` moves jobs within, and over which
    accounts win or lose. "": `multifactor` has the usual ones, and `rl` moves jobs within the order of submission.
    """
    objective: Objective = DEFAULT  # what J weighs, and what models are told to want
    gate: bool = False
    """Of `rltuned gate`: its policies are called by their shares, and what it does not say is the daemon's."""
    names: bool = False
    """Of `rltuned gate`: whether it says what predictions by names would be worth."""

    def __post_init__(self) -> None:
        """Raises EvaluationError, ConfigError: what does not exist, is named twice, or makes no sense."""
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
    def by_history(self) -> bool:
        """Whether run times are predicted by the jobs that have ended."""
        return parse_estimates(self.estimates).kind is EstimateKind.HISTORY

    @property
    def asks_names(self) -> bool:
        """Whether what jobs are called is to be read."""
        return self.names or parse_estimates(self.estimates).names

    @property
    def past(self) -> int:
        """How many jobs before the window are simulated."""
        if self.start is Start.IDLE:
            return 0
        return self.window if self.warm_jobs is None else self.warm_jobs

    @property
    def command(self) -> str:
        """The command line that gives these numbers again, in one spelling: outputs and processes are left out."""
        usual: dict[str, Any] = {"split": "all"}
        if not self.gate:  # its other defaults are those of the daemon's configuration
            usual |= {"start": "idle", "model": DEFAULT_MODEL}
        if not self.gate and self.cluster:
            usual["objective"] = str(DEFAULT)
        options = {name: value for name, value in self.options().items() if value != usual.get(name)}
        return command_line("gate" if self.gate else "evaluate", options)

    def options(self) -> dict[str, Any]:
        """By name, as the command line takes them."""
        said = self.as_dict()
        slurm = [f"{name}={said.pop(name)}" for name in ("backfill", "placement") if said[name] != "slurm"]
        said["slurm"] = ",".join(filter(None, [*slurm, said["scheduler"]]))
        if self.start is not Start.IDLE and self.warm_jobs is not None:
            said["start"] += f":{self.warm_jobs}"
        elsewhere = {"backfill", "placement", "scheduler", "warm_jobs", "split_fractions"}
        return {name: value for name, value in said.items() if name not in elsewhere}

    def as_dict(self) -> dict[str, Any]:
        """By name, for the JSON and to tell two evaluations apart."""
        said = vars(self) | {"policies": ",".join(self.policies), "objective": str(self.objective)}
        last = {"skip_bad": said.pop("skip_bad"), "from_slurm": not self.cluster, "from_sacct": said.pop("from_sacct")}
        if not said["names"]:
            del said["names"]
        if said.pop("gate"):
            shares = sorted({share for _, share in map(served, self.policies) if share is not None})
            said["policies"] = ",".join(f"{share:g}" for share in shares)
            said = {"shares" if name == "policies" else name: value for name, value in said.items()}
        return said | last | {"split_fractions": list(FRACTIONS[self.split])}


def command_line(command: str, options: Mapping[str, Any]) -> str:
    """Of `rltuned`; options that are None, False or empty are not said."""
    words = ["rltuned", command]
    for name, value in options.items():
        if value is not None and value is not False and value != "":
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return shlex.join(words)


def from_options(options: Mapping[str, Any]) -> EvaluationSettings:
    """Of the command line's options, by their names; absent ones (None) keep their default. Raises EvaluationError,
    ConfigError.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "policies" in given:
        given["policies"] = tuple(name.strip() for name in given["policies"].split(","))
    if "split" in given:
        given["split"] = Split(given["split"])
    if "start" in given:
        given |= _start(given["start"])
    if "slurm" in given:
        given |= _slurm(given.pop("slurm"))
    return EvaluationSettings(**given)


def as_configured(config: Config, given: Mapping[str, Any]) -> EvaluationSettings:
    """What the daemon is configured to do, on a busy cluster. What is `given`, as of `from_options`, comes first.
    Raises EvaluationError, ConfigError.
    """
    site, names = given.get("from_sacct") is not None and config.estimates.source == "history", config.estimates.names
    daemons = {
        # Of other jobs it is not known what they are called.
        "estimates": config.estimates.source + (":names" if site and names == "hashed" else ""),
        "model": config.policy.model,
        "objective": config.policy.objective,
        # When jobs really ran says what ran and waited at a moment: on the site's own cluster.
        "start": Start.WARM if given.get("cluster") else Start.REAL,
        "gate": True,
    }
    return from_options(daemons | dict(given))


def not_judged(config: Config) -> list[str]:
    """Settings of the site's that nothing here simulates, as ``section.key``."""
    return [] if config.lend.most == Config().lend.most else ["lend.most"]


def _start(text: str) -> dict[str, Any]:
    """Of ``--start``: "idle", "warm", "warm:1000", "real", "real:1000"."""
    start, colon, jobs = text.partition(":")
    if start not in {*Start} or (colon and (start == Start.IDLE or not jobs.isdecimal() or int(jobs) < 1)):
        raise EvaluationError(f"--start: '{text}' is none of idle, warm, real, warm:JOBS, real:JOBS")
    return {"start": Start(start), **({"warm_jobs": int(jobs)} if colon else {})}


def _slurm(text: str) -> dict[str, Any]:
    """Of ``--slurm``: backfill, placement, and SchedulerParameters."""
    kinds: dict[str, type[Backfill | Fit]] = {"backfill": Backfill, "placement": Fit}
    found: dict[str, Any] = {}
    others = []
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name not in kinds:
            others.append(word.strip())
        elif value in {*kinds[name]}:
            found[name] = kinds[name](value)
        else:
            raise EvaluationError(f"--slurm: {name} is one of {', '.join(kinds[name])}, not '{value}'")
    return {**found, "scheduler": ",".join(others)}
