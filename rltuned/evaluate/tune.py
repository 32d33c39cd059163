"""The best that slurm.conf alone can do on a site's own jobs: searched on earlier windows, judged on later ones.

The cost of a candidate is J (`rltuned.cluster.objective`) over the site's own slurm.conf, with a penalty where it
breaks a bound that the daemon is held to. The search is differential evolution (Storn and Price, Journal of Global
Optimization 11, 1997; SciPy's) on the logarithms of the numbers. What it finds is put back to the site's own values as
far as that costs next to nothing, so that few lines are left.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from scipy.optimize import differential_evolution

from rltuned.cluster.borrowed import owners
from rltuned.cluster.hostlist import compress
from rltuned.cluster.scheduler import SchedulerParameters
from rltuned.cluster.shape import ClusterShape
from rltuned.cluster.tables import Floats, Ints, NodeTable, Rows
from rltuned.errors import EvaluationError
from rltuned.evaluate.bootstrap import FAIRNESS, FEWEST, MOST_WORSE, Comparison, beyond_chance, compare, counts
from rltuned.evaluate.case import Case
from rltuned.evaluate.evaluation import ready
from rltuned.evaluate.evaluation_settings import AGAIN, EvaluationSettings
from rltuned.evaluate.gate import OWN, WINDOWS, in_words, lower, recent
from rltuned.evaluate.measure import simulate_case
from rltuned.evaluate.policies import contender
from rltuned.evaluate.windows import Split
from rltuned.policy.multifactor import USUAL, Weights
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.values import Backfill
from rltuned.workers.pool import WorkerPool
from rltuned.workers.progress import Progress, silent
from rltuned.workload.jobs import Workload

BUDGET: Final = 300
"""Candidates."""
POPULATION: Final = 20
JUDGED: Final = 1 / 3
"""Share of the windows, the latest, that the search never sees."""
FIRST_LOOK: Final = 1 / 3
"""Share of the search's windows that every candidate is tried on, …"""
HOPELESS: Final = 0.1
"""… and by how much it may cost more than the best there to be tried on the others."""
NEGLIGIBLE: Final = 0.001
"""Of J: what simplifying may cost."""
PENALTY: Final = 3.0
"""Of a unit beyond a bound."""
BOUNDS: Final = {"wait_p99": 1.0, "makespan": 1.02}
"""Of a metric over the site's own slurm.conf: what is allowed. `FAIRNESS` holds, too."""
LATER_BOUNDS: Final = dict.fromkeys(BOUNDS, MOST_WORSE)
"""Of the judgement, as the gate has it: there are fewer windows, and these metrics are noisy."""
SHOWN: Final = {
    "objective": "J",
    "wait_mean": "wait",
    "bsld_mean": "slowdown",
    "wait_p99": "wait p99",
    "idle": "idle GPUs",
    "makespan": "makespan",
}
"""Metrics of the judgement, over the site's own slurm.conf, and their headings."""
HOUR: Final = 3600.0

Values = Mapping[str, float]
"""Of slurm.conf, by the names of `Weights` and `SchedulerParameters`; `_WEIGHT_OF` and a GPU type: of its nodes."""
_WEIGHT_OF: Final = "Weight of "


@dataclass(frozen=True)
class Parameter:
    """A number of slurm.conf that may be changed."""

    name: str
    least: float
    """Of the search; of a weight, what is less than ten times this means 0."""
    most: float
    says: str
    """What it does, for the comment beside the line."""
    step: float = 1.0
    """Values are multiples of this."""

    @property
    def is_flag(self) -> bool:
        """Whether it is yes or no."""
        return self.most == 1.0

    @property
    def ends(self) -> tuple[float, float]:
        """Of the search's variable."""
        return (0.0, 1.0) if self.is_flag else (math.log10(self.least), math.log10(self.most))

    def variable(self, value: float) -> float:
        """Of a value."""
        return value if self.is_flag else math.log10(min(max(value, self.least), self.most))

    def value(self, variable: float, own: float) -> float:
        """Of a variable: two digits, or the site's `own` where it is all but that."""
        if self.is_flag:
            return float(round(variable))
        if abs(variable - self.variable(own)) < 0.03:
            return own
        raw = 10.0**variable
        if self.name in _WEIGHTS and raw < 10.0 * self.least:
            return 0.0
        digits = 10.0 ** (math.floor(variable) - 1)
        return float(max(round(round(raw / digits) * digits / self.step), 1) * self.step)


_WEIGHTS: Final = {
    "age": "jobs that have waited longer go first",
    "fairshare": "accounts and users that have used less than their share go first",
    "job_size": "the size of a job",
    "gres/gpu": "jobs of many GPUs go first",
    "cpu": "jobs of many CPUs go first",
}
_RANGE: Final = 1e3
"""Weights are tried up to so many times the largest that the site has, and down to its inverse."""
_LARGEST_WEIGHT: Final = 4e8
"""Priorities are numbers of 32 bits."""
_OTHERS: Final = (
    Parameter("max_age", HOUR, 60 * 24 * HOUR, "so long does a job's age grow", HOUR),
    Parameter("favor_small", 0.0, 1.0, "the weight of job size prefers small jobs"),
    Parameter("small_relative_to_time", 0.0, 1.0, "size is CPUs for each minute of the time limit"),
)


@dataclass(frozen=True)
class Site:
    """A slurm.conf, and what of it may be changed."""

    settings: EvaluationSettings
    """Of the evaluation, with the weights and the scheduler of slurm.conf."""
    own: Values
    parameters: tuple[Parameter, ...]
    nodes: NodeTable

    @classmethod
    def of(cls, settings: EvaluationSettings, jobs: Workload, shape: ClusterShape) -> "Site":
        """What has an effect on these jobs. Of weights only the proportions have: the largest stays as it is."""
        weights = Weights.parse(settings.weights) if settings.weights else USUAL
        scheduler = SchedulerParameters.parse(settings.scheduler)
        own = {name: float(value) for name, value in vars(weights).items() if name != "tres"} | dict(weights.tres)
        names = [name for name in _WEIGHTS if own.setdefault(name, 0.0) or name != "cpu"]
        if len(np.unique(owners(jobs.account, jobs.user).codes)) < 2:
            names.remove("fairshare")
        largest = max(names, key=own.__getitem__)
        unit = own[largest] or 1e4
        ends = max(unit / _RANGE, 0.1) / 10.0, min(unit * _RANGE, _LARGEST_WEIGHT)
        parameters = [Parameter(name, *ends, _WEIGHTS[name]) for name in names if name != largest or not own[name]]
        parameters += _OTHERS
        if scheduler.backfill and settings.backfill is Backfill.SLURM:
            of = {
                "bf_interval": (scheduler.bf_interval, 30.0, 600.0, "seconds from one backfill to the next"),
                "bf_window": (scheduler.bf_window / 60.0, 60.0, 20_160.0, "minutes that backfill plans ahead"),
                "bf_resolution": (scheduler.bf_resolution, 60.0, 3600.0, "seconds that backfill rounds times to"),
                "bf_max_job_test": (float(scheduler.bf_max_job_test), 10.0, 1000.0, "jobs that backfill looks at"),
            }
            for name, (value, least, most, says) in of.items():
                own[name] = value
                parameters.append(Parameter(name, min(value, least), max(value, most), says))
        kinds = shape.nodes.gpu_types
        if len(kinds) > 1 and (jobs.gpu_type.codes < 0).any():
            for kind in kinds:
                weights_there = set(_weight(shape.nodes)[_of_type(shape.nodes, kind)].tolist())
                if len(weights_there) == 1:
                    own[_WEIGHT_OF + kind] = float(weights_there.pop())
                    parameters.append(
                        Parameter(
                            _WEIGHT_OF + kind, 1.0, 1000.0, "a job that names no type gets the nodes that weigh less"
                        )
                    )
        return cls(replace(settings, weights=_text(own, _is_weight)), own, tuple(parameters), shape.nodes)

    def tuned(self, values: Values) -> EvaluationSettings:
        """The settings of this site with that slurm.conf."""
        return replace(
            self.settings,
            weights=_text(values, _is_weight),
            scheduler=_text(values, lambda name: name.startswith("bf_")),
        )

    def node_weights(self, values: Values) -> Ints | None:
        """(M,) of that slurm.conf; None: as they are."""
        found = _weight(self.nodes).copy()
        for name, value in values.items():
            if name.startswith(_WEIGHT_OF):
                found[_of_type(self.nodes, name.removeprefix(_WEIGHT_OF))] = int(value)
        return found if (found != _weight(self.nodes)).any() else None

    def run(self, policy: str, values: Values) -> "Run":
        """A policy with that slurm.conf."""
        return Run(policy, self.tuned(values), self.node_weights(values))

    def candidate(self, variables: Floats) -> dict[str, float]:
        """Of the search's variables."""
        found = {
            one.name: one.value(float(at), self.own[one.name])
            for one, at in zip(self.parameters, variables, strict=True)
        }
        return {**self.own, **found}

    def variables(self, values: Values) -> list[float]:
        """Of a candidate."""
        return [one.variable(values[one.name]) for one in self.parameters]


def _is_weight(name: str) -> bool:
    """Whether it is of `Weights`, not of the scheduler or of nodes."""
    return not name.startswith(("bf_", _WEIGHT_OF))


def _weight(nodes: NodeTable) -> Ints:
    return np.ones(len(nodes), dtype=np.int64) if nodes.weight is None else nodes.weight


def _of_type(nodes: NodeTable, kind: str) -> Rows:
    """Rows of the nodes that have GPUs of that type."""
    return np.flatnonzero(nodes.gpus[:, nodes.gpu_types.index(kind)] > 0)


def _text(values: Values, which: Callable[[str], bool]) -> str:
    return ",".join(f"{name}={value:.15g}" for name, value in values.items() if which(name))


# --- simulating


@dataclass(frozen=True)
class Run:
    """A policy with a slurm.conf."""

    policy: str
    settings: EvaluationSettings
    node_weights: Ints | None = None
    """(M,) None: as they are."""


@dataclass(frozen=True)
class Work:
    """A window, and what to try on it: what a process is sent."""

    case: Case
    settings: EvaluationSettings
    """The site's."""
    runs: tuple[Run, ...]
    own: tuple[Floats, Floats] | None = None
    """Starts and ends under the site's own slurm.conf; None: the first run is that."""


@dataclass(frozen=True)
class Measured:
    """One run on one window."""

    metrics: Mapping[str, float]
    times: tuple[Floats, Floats]
    """(n,) starts and ends, seconds."""


def simulate(work: Work) -> list[Measured]:
    """Each run of a window. Slurm's own order asks for no predictions: none are made for it."""
    compile_kernel()
    found: list[Measured] = []
    for run in work.runs:
        learned = run.policy not in {OWN, AGAIN}
        settings = work.settings if learned else replace(work.settings, estimates="limit")
        case = work.case
        if run.node_weights is not None:
            nodes = replace(case.shape.nodes, weight=run.node_weights)
            case = replace(case, shape=replace(case.shape, nodes=nodes))
        result = simulate_case(case, contender(run.policy, run.settings), settings).result()
        times = result.start, result.end
        metrics = work.case.metrics(*times).as_dict()
        own = work.own or (found[0].times if found else times)
        metrics |= dict(zip(FAIRNESS, work.case.over_slurm(times, own), strict=True))
        found.append(Measured(metrics, times))
    return found


@dataclass(frozen=True)
class Baseline:
    """Windows with what the site's own slurm.conf does on them, and what differs by chance."""

    site: Site
    cases: tuple[Case, ...]
    own: tuple[Measured, ...]
    again: tuple[Measured, ...]

    @classmethod
    def of(cls, site: Site, cases: Sequence[Case], pool: WorkerPool) -> "Baseline":
        """Simulate the site's own slurm.conf."""
        runs = (Run(OWN, site.settings), Run(AGAIN, site.settings))
        found = list(pool.map(simulate, [Work(case, site.settings, runs) for case in cases]))
        return cls(site, tuple(cases), tuple(own for own, _ in found), tuple(again for _, again in found))

    def table(self, measured: Sequence[Measured]) -> dict[str, Floats]:
        """(W,) of each metric on the first W windows, J over the site's own among them."""
        found = {
            name: np.array([each.metrics[name] for each in measured], dtype=np.float64)
            for name in (*list(SHOWN)[1:], *FAIRNESS)
        }
        of = self.site.settings.objective.of
        pairs = zip(measured, self.own, strict=False)
        found["objective"] = np.array([of(_known(each), _known(own)) for each, own in pairs], dtype=np.float64)
        return found

    def excess(self, found: Mapping[str, Floats], bounds: Mapping[str, float], *, fairly: bool) -> dict[str, float]:
        """How far beyond its bound each metric is; none that keeps it. `fairly`: those of accounts count."""
        windows = len(found["objective"])
        own, chance = self.table(self.own[:windows]), self.table(self.again[:windows])
        ratio = {name: mean(found[name]) / max(mean(own[name]), 1.0) - most for name, most in bounds.items()}
        over = {name: value for name, value in ratio.items() if value > 0.0}
        if fairly:
            means = [{name: mean(of[name]) for name in FAIRNESS} for of in (found, chance)]
            over |= {what: share - by - allowed for what, share, by, allowed in beyond_chance(*means)}
        return over


def _known(measured: Measured) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in measured.metrics.items()}


def mean(values: Floats) -> float:
    """Of what is known; NaN for nothing."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


# --- searching


class Search:
    """Tries candidates on the earlier windows, each once. Deterministic, however many processes there are."""

    def __init__(self, windows: Baseline, pool: WorkerPool, *, fairly: bool) -> None:
        self.windows, self.fairly = windows, fairly
        self.tried: dict[tuple[float, ...], tuple[float, float]] = {}
        """By values: cost, and J where every window was looked at and all bounds are kept; else infinite."""
        self._pool = pool
        self._first = max(round(FIRST_LOOK * len(windows.cases)), 1)
        self._best_first = math.inf

    def costs(self, candidates: Sequence[Values], *, wholly: bool = False) -> list[tuple[float, float]]:
        """Cost and J of each; `wholly`: however bad they look at first."""
        keys = [tuple(values.values()) for values in candidates]
        new = {key: values for key, values in zip(keys, candidates, strict=True) if key not in self.tried}
        first = self._simulate(list(new.values()), 0, self._first)
        looks = [self._judged(found)[0] for found in first]
        self._best_first = min([self._best_first, *looks])
        good = [wholly or look <= self._best_first + HOPELESS for look in looks]
        more = iter(
            self._simulate([values for values, on in zip(new.values(), good, strict=True) if on], self._first, None)
        )
        for key, found, look, on in zip(new, first, looks, good, strict=True):
            self.tried[key] = self._judged([*found, *next(more)]) if on else (look, math.inf)
        return [self.tried[key] for key in keys]

    def _simulate(self, candidates: Sequence[Values], begin: int, end: int | None) -> list[list[Measured]]:
        """Of each candidate, its windows from one on to another."""
        windows, site = self.windows, self.windows.site
        runs = tuple(site.run(OWN, values) for values in candidates)
        if not runs:
            return []
        pairs = zip(windows.cases[begin:end], windows.own[begin:end], strict=True)
        works = [Work(case, site.settings, runs, own.times) for case, own in pairs]
        return [list(of) for of in zip(*self._pool.map(simulate, works), strict=True)]

    def _judged(self, measured: Sequence[Measured]) -> tuple[float, float]:
        found = self.windows.table(measured)
        over = self.windows.excess(found, BOUNDS, fairly=self.fairly)
        value = mean(found["objective"])
        return value + PENALTY * math.fsum(over.values()), math.inf if over else value


def searched(search: Search, budget: int, seed: int, progress: Progress = silent) -> dict[str, float]:
    """The best of so many candidates that keeps all bounds, with as few changes as do; the site's own where none is."""
    site = search.windows.site
    rng = np.random.default_rng(seed)
    ends = np.array([one.ends for one in site.parameters])
    population = rng.uniform(ends[:, 0], ends[:, 1], (min(POPULATION, budget), len(ends)))
    # Half of the first population is near the site's own slurm.conf: most of what is far away breaks a bound.
    near = np.array(site.variables(site.own))
    mixed = np.where(rng.random(population.shape) < 0.7, near, population)
    population[: len(population) // 2] = mixed[: len(population) // 2]
    population[0] = near
    looked_at = 0

    def costs(columns: Floats) -> Floats:
        """(S,) of (N, S) variables, as SciPy asks for them."""
        nonlocal looked_at
        found = search.costs([site.candidate(column) for column in columns.T])
        looked_at += len(found)
        progress("searching", min(looked_at, budget), budget)
        return np.array([cost for cost, _ in found])

    differential_evolution(
        costs,
        ends,
        init=population,
        integrality=[one.is_flag for one in site.parameters],
        maxiter=max(budget // len(population) - 1, 0),
        tol=0.0,
        polish=False,
        vectorized=True,
        updating="deferred",
        rng=rng,
    )
    names = list(site.own)
    best = min(search.tried, key=lambda key: (search.tried[key][1], search.tried[key][0]))
    return simplified(search, dict(zip(names, best, strict=True)))


def simplified(search: Search, found: Mapping[str, float]) -> dict[str, float]:
    """As found, but with the site's own values wherever that costs next to nothing."""
    own, values = search.windows.site.own, dict(found)
    ((_, best),) = search.costs([values], wholly=True)
    for one in search.windows.site.parameters:
        if values[one.name] != own[one.name]:
            without = {**values, one.name: own[one.name]}
            ((_, cost),) = search.costs([without], wholly=True)
            if cost <= best * (1.0 + NEGLIGIBLE):
                values = without
    return values


# --- judging


@dataclass(frozen=True)
class Tuned:
    """What was found, and what it does on later jobs."""

    about: Mapping[str, Any]
    """Program, trace, cluster and settings, as a report of an evaluation has them."""
    site: Site
    values: Values
    candidates: int
    """That were tried."""
    windows: tuple[int, int]
    """Of the search, and of the judgement."""
    jobs: int
    """Of a window."""
    compared: Mapping[str, Mapping[str, Comparison]]
    """By policy and metric of `SHOWN`: over the site's own slurm.conf."""
    fairness: Mapping[str, Mapping[str, float]]
    """By policy, "chance" among them, and metric of `FAIRNESS`."""
    broken: Sequence[str]
    """Bounds that the tuned slurm.conf breaks on the later windows, in words."""

    @property
    def better(self) -> bool:
        """Whether it is certainly better than the site's own, and keeps the bounds."""
        return self.values != self.site.own and not self.broken and lower(self.compared["tuned"]["objective"])

    @property
    def reason(self) -> str:
        """In a sentence."""
        if self.values == self.site.own:
            return "Your slurm.conf is as good as any that was found."
        ratio = in_words(self.compared["tuned"]["objective"])
        if self.better:
            return f"With these lines J is certainly lower: {ratio} of what your slurm.conf gives."
        why = "; ".join(self.broken) or f"J of the best is {ratio} of yours"
        return f"Your slurm.conf is as good as any that was found: on later jobs, {why}."

    def lines(self) -> list[str]:
        """Lines for slurm.conf, each with what it is good for; none where nothing is certainly better."""
        if not self.better:
            return []
        unseen = [f"PriorityWeight{name}" for key, name in _UNSEEN.items() if self.site.own[key]]
        said = [f"# {' and '.join(unseen)} are not simulated: do they still decide what they should?"] if unseen else []
        return conf_lines(self.site, self.values) + said

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "about": self.about,
            "better": self.better,
            "reason": self.reason,
            "lines": self.lines(),
            "own": dict(self.site.own),
            "found": dict(self.values),
            "candidates": self.candidates,
            "windows": {"searched": self.windows[0], "judged": self.windows[1], "jobs": self.jobs},
            "over_own": {
                name: {metric: asdict(one) for metric, one in of.items()} for name, of in self.compared.items()
            },
            "fairness": {
                name: {metric: value if math.isfinite(value) else None for metric, value in of.items()}
                for name, of in self.fairness.items()
            },
        }


_OPTION: Final = {
    "age": "PriorityWeightAge",
    "fairshare": "PriorityWeightFairshare",
    "job_size": "PriorityWeightJobSize",
    "max_age": "PriorityMaxAge",
    "favor_small": "PriorityFavorSmall",
    "small_relative_to_time": "PriorityFlags",
}


_UNSEEN: Final = {"qos": "QOS", "partition": "Partition"}
"""No QOS and no partition of an evaluation has a priority."""


def conf_lines(site: Site, values: Values) -> list[str]:
    """What differs from the site's own, as slurm.conf(5) spells it."""
    changed = [one for one in site.parameters if values[one.name] != site.own[one.name]]
    found = [
        f"{_OPTION[one.name]}={_written(one.name, values[one.name])}  # {_about(one, values, site)}"
        for one in changed
        if one.name in _OPTION
    ]
    tres = [one for one in changed if one.name not in _OPTION and _is_weight(one.name)]
    if tres:
        named = {"cpu": "CPU", "mem": "Mem", "gres/gpu": "GRES/gpu"}
        kept = {name: value for name, value in values.items() if name not in vars(USUAL) and _is_weight(name)}
        text = ",".join(f"{named.get(name, name)}={value:.15g}" for name, value in kept.items() if value)
        found.append(f"PriorityWeightTRES={text}  # {'; '.join(_about(one, values, site) for one in tres)}")
    for one in changed:
        if one.name.startswith(_WEIGHT_OF):
            rows = _of_type(site.nodes, one.name.removeprefix(_WEIGHT_OF))
            names = compress(site.nodes.names[row] for row in rows.tolist())
            found.append(f"NodeName={names} ... Weight={values[one.name]:.15g}  # {_about(one, values, site)}")
    passes = [one for one in changed if one.name.startswith("bf_")]
    if passes:
        text = ",".join(f"{one.name}={values[one.name]:.15g}" for one in passes)
        says = "; ".join(_about(one, values, site) for one in passes)
        found.append(f"SchedulerParameters={text}  # beside what else you have there; {says}")
    return found


def _about(one: Parameter, values: Values, site: Site) -> str:
    if one.name == "small_relative_to_time":
        return (
            f"{one.says}; beside your other flags" if values[one.name] else "your flags without SMALL_RELATIVE_TO_TIME"
        )
    if one.is_flag:
        return one.says
    says = one.says
    if one.name == "job_size":
        relative, small = values["small_relative_to_time"], values["favor_small"]
        first = ("small jobs" if small else "large jobs") + (" of a short time limit" if relative and not small else "")
        says = f"{first} go first"
    return f"{says}; was {_written(one.name, site.own[one.name])}"


def _written(name: str, value: float) -> str:
    if name == "max_age":
        days, seconds = divmod(round(value), 86_400)
        return f"{days}-{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
    if name == "favor_small":
        return "YES" if value else "NO"
    if name == "small_relative_to_time":
        return "SMALL_RELATIVE_TO_TIME" if value else ""
    return f"{value:.15g}"


def tune(
    settings: EvaluationSettings,
    jobs: Workload,
    shape: ClusterShape,
    revision: str,
    *,
    processes: int = 1,
    budget: int = BUDGET,
    length: int | None = None,
    fairly: bool = True,
    daemon: bool = True,
    progress: Progress = silent,
) -> Tuned:
    """Search the site's earlier windows, judge on the later ones.

    `settings`: of `gate.as_configured`, with the site's weights and scheduler. `length`: jobs of a window; None: as
    many as give enough windows. `fairly`: accounts may not lose beyond chance. `daemon`: judge rltuned, too, alone and
    on top. Raises EvaluationError: too little history. ModelError: the model was refused.
    """
    fewest = round(FEWEST / JUDGED)
    windows = recent(
        len(jobs), Split.ALL, length, WINDOWS, settings.warm_jobs, fewest=fewest, whose="the search for a slurm.conf"
    )
    later, chosen = round(JUDGED * len(windows)), windows[0].jobs
    policies = (OWN, "rl") if daemon else (OWN,)
    settled = replace(settings, window=chosen, windows=len(windows), policies=policies)
    evaluation = ready(settled, jobs, shape, revision, windows)
    site = Site.of(settled, jobs, shape)
    nothing = slice(0, 0)  # of earlier jobs: Slurm predicts nothing
    earlier = [
        replace(case, before=case.before.take(nothing), before_estimates=case.before_estimates.take(nothing))
        for case in evaluation.cases[:-later]
    ]
    every = round(1 / FIRST_LOOK)  # those of the first look are from all of the time
    cases = [case for first in range(every) for case in earlier[first::every]]
    with WorkerPool(processes) as pool:
        baseline = Baseline.of(site, cases, pool)
        if math.isnan(mean(baseline.table(baseline.own)["objective"])):
            raise EvaluationError(
                f"no job of these windows can run on {shape.text}: name a --cluster that has what they ask for"
            )
        search = Search(baseline, pool, fairly=fairly)
        values = searched(search, budget, settings.seed, progress)
        judged = Baseline.of(site, evaluation.cases[-later:], pool)
        runs = {"tuned": site.run(OWN, values)}
        if daemon:
            runs |= {"rltuned": Run("rl", site.settings), "both": site.run("rl", values)}
        works = [
            Work(case, site.settings, (run,), own.times)
            for run in runs.values()
            for case, own in zip(judged.cases, judged.own, strict=True)
        ]
        done: list[Measured] = []
        for (one,) in pool.map(simulate, works):
            done.append(one)
            progress("judging", len(done), len(works))
    tables = {name: judged.table(done[at * later : (at + 1) * later]) for at, name in enumerate(runs)}
    own, drawn = judged.table(judged.own), counts(later, settings.seed)
    over = judged.excess(tables["tuned"], LATER_BOUNDS, fairly=fairly)
    return Tuned(
        about=evaluation.meta,
        site=site,
        values=values,
        candidates=len(search.tried),
        windows=(len(cases), later),
        jobs=chosen,
        compared={
            name: {metric: compare(np.array([of[metric], own[metric]]), drawn)[0][1] for metric in SHOWN}
            for name, of in tables.items()
        },
        fairness={
            name: {metric: mean(of[metric]) for metric in FAIRNESS}
            for name, of in {"chance": judged.table(judged.again), **tables}.items()
        },
        broken=[f"{name.replace('_', ' ')} is beyond its bound by {value:.3f}" for name, value in over.items()],
    )
