"""The best that slurm.conf alone can do on a site's own jobs: searched on earlier windows, judged on later ones.

The cost of a candidate is J (`rltuned.core.objective`) over the site's own slurm.conf, with a penalty where it
breaks a bound that the daemon is held to. The search is differential evolution (Storn and Price, Journal of Global
Optimization 11, 1997; SciPy's) on the logarithms of the numbers. What it finds is put back to the site's own values as
far as that costs next to nothing, so that few lines are left.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from scipy.optimize import differential_evolution

from rltuned.core.errors import EvaluationError
from rltuned.core.tables import Floats
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.bootstrap import FEWEST, MOST_WORSE, Comparison, compare, counts, mean
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.evaluation_settings import AGAIN, OWN, EvaluationSettings, command_line
from rltuned.lab.evaluate.harm import ACCOUNTS, harms
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.slurm_conf import SlurmConf, Values
from rltuned.lab.evaluate.windows import MOST, Split, recent
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload

WINDOW: Final = 256
"""Jobs of a window: each candidate is simulated on dozens of them."""
BUDGET: Final = 300
"""Candidates."""
_SHARED: Final = (
    *("--trace", "--from-sacct", "--cluster", "--weights", "--scheduler"),
    *("--estimates", "--objective", "--window", "--seed", "--skip-bad"),
)
"""Options of `rltuned tune` that an evaluation has, too."""
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
"""Of a metric over the site's own slurm.conf: what is allowed. What accounts may lose is that of `harm.ACCOUNTS`."""
LATER_BOUNDS: Final = dict.fromkeys(BOUNDS, MOST_WORSE)
"""Of the judgement: there are fewer windows, and these metrics are noisy."""
FAIRNESS: Final = tuple(bound.metric for bound in ACCOUNTS)
SHOWN: Final = {
    "objective": "J",
    "wait_mean": "wait",
    "bsld_mean": "slowdown",
    "wait_p99": "wait p99",
    "idle": "idle GPUs",
    "makespan": "makespan",
}
"""Metrics of the judgement, over the site's own slurm.conf, and their headings."""
# --- simulating


@dataclass(frozen=True)
class Run:
    """A policy with a slurm.conf."""

    policy: str
    values: Values | None = None
    """None: the site's own."""


@dataclass(frozen=True)
class Work:
    """A window, and what to try on it: what a process is sent."""

    case: Case
    settings: EvaluationSettings
    """The site's."""
    runs: tuple[Run, ...]
    own: Floats | None = None
    """(n,) starts under the site's own slurm.conf, seconds; None: the first run is that."""


@dataclass(frozen=True)
class Measured:
    """One run on one window."""

    metrics: Mapping[str, float]
    start: Floats
    """(n,) seconds."""


def simulate(work: Work) -> list[Measured]:
    """Each run of a window."""
    compile_kernel()
    found: list[Measured] = []
    own = work.own
    for run in work.runs:
        result = simulate_case(work.case, contender(run.policy, work.settings, run.values), work.settings).result()
        own = result.start if own is None else own
        metrics = work.case.metrics(result.start, result.end).as_dict()
        metrics |= work.case.against_slurm(result.start, own)._asdict()
        found.append(Measured(metrics, result.start))
    return found


@dataclass(frozen=True)
class Baseline:
    """Windows with what the site's own slurm.conf does on them, and what differs by chance."""

    conf: SlurmConf
    cases: tuple[Case, ...]
    own: tuple[Measured, ...]
    again: tuple[Measured, ...]

    @classmethod
    def of(cls, conf: SlurmConf, cases: Sequence[Case], pool: WorkerPool) -> "Baseline":
        """Simulate the site's own slurm.conf."""
        runs = (Run(OWN), Run(AGAIN))
        found = list(pool.map(simulate, [Work(case, conf.settings, runs) for case in cases]))
        return cls(conf, tuple(cases), tuple(own for own, _ in found), tuple(again for _, again in found))

    def table(self, measured: Sequence[Measured]) -> dict[str, Floats]:
        """(W,) of each metric on the first W windows, J over the site's own among them."""
        found = {
            name: np.array([each.metrics[name] for each in measured], dtype=np.float64)
            for name in (*list(SHOWN)[1:], *FAIRNESS)
        }
        of = self.conf.settings.objective.of
        pairs = zip(measured, self.own, strict=False)
        found["objective"] = np.array([of(each.metrics, own.metrics) for each, own in pairs], dtype=np.float64)
        return found

    def excess(self, found: Mapping[str, Floats], bounds: Mapping[str, float], *, fairly: bool) -> dict[str, float]:
        """How far beyond its bound each metric is; none that keeps it. `fairly`: those of accounts count."""
        windows = len(found["objective"])
        own, chance = self.table(self.own[:windows]), self.table(self.again[:windows])
        ratio = {name: mean(found[name]) / max(mean(own[name]), 1.0) - most for name, most in bounds.items()}
        over = {name: value for name, value in ratio.items() if value > 0.0}
        if fairly:
            ours, slurm, again = ({name: mean(of[name]) for name in FAIRNESS} for of in (found, own, chance))
            over |= {harm.words: harm.excess for harm in harms(ours, slurm, again, ACCOUNTS)}
        return over


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
        windows, conf = self.windows, self.windows.conf
        runs = tuple(Run(OWN, values) for values in candidates)
        if not runs:
            return []
        pairs = zip(windows.cases[begin:end], windows.own[begin:end], strict=True)
        works = [Work(case, conf.settings, runs, own.start) for case, own in pairs]
        return [list(of) for of in zip(*self._pool.map(simulate, works), strict=True)]

    def _judged(self, measured: Sequence[Measured]) -> tuple[float, float]:
        found = self.windows.table(measured)
        over = self.windows.excess(found, BOUNDS, fairly=self.fairly)
        value = mean(found["objective"])
        return value + PENALTY * math.fsum(over.values()), math.inf if over else value


def searched(search: Search, budget: int, seed: int, progress: Progress = silent) -> dict[str, float]:
    """The best of so many candidates that keeps all bounds, with as few changes as do; the site's own where none is."""
    conf = search.windows.conf
    rng = np.random.default_rng(seed)
    ends = np.array([one.ends for one in conf.parameters])
    population = rng.uniform(ends[:, 0], ends[:, 1], (min(POPULATION, budget), len(ends)))
    # Half of the first population is near the site's own slurm.conf: most of what is far away breaks a bound.
    near = np.array(conf.variables(conf.own))
    mixed = np.where(rng.random(population.shape) < 0.7, near, population)
    population[: len(population) // 2] = mixed[: len(population) // 2]
    for row, values in enumerate([conf.own, *conf.promising()][: len(population)]):
        population[row] = conf.variables(values)
    looked_at = 0

    def costs(columns: Floats) -> Floats:
        """(S,) of (N, S) variables, as SciPy asks for them."""
        nonlocal looked_at
        found = search.costs([conf.candidate(column) for column in columns.T])
        looked_at += len(found)
        progress("searching", min(looked_at, budget), budget)
        return np.array([cost for cost, _ in found])

    differential_evolution(
        costs,
        ends,
        init=population,
        integrality=[one.is_flag for one in conf.parameters],
        maxiter=max(budget // len(population) - 1, 0),
        tol=0.0,
        polish=False,
        vectorized=True,
        updating="deferred",
        rng=rng,
    )
    names = list(conf.own)
    best = min(search.tried, key=lambda key: (search.tried[key][1], search.tried[key][0]))
    return simplified(search, dict(zip(names, best, strict=True)))


def simplified(search: Search, found: Mapping[str, float]) -> dict[str, float]:
    """As found, but with the site's own values wherever that costs next to nothing."""
    own, values = search.windows.conf.own, dict(found)
    ((_, best),) = search.costs([values], wholly=True)
    for one in search.windows.conf.parameters:
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
    conf: SlurmConf
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
        return self.values != self.conf.own and not self.broken and self.compared["tuned"]["objective"].lower

    @property
    def reason(self) -> str:
        """In a sentence."""
        if self.values == self.conf.own:
            return "Your slurm.conf is as good as any that was found."
        ratio = self.compared["tuned"]["objective"]
        if self.better:
            return f"With these lines J is certainly lower: {ratio} of what your slurm.conf gives."
        why = "; ".join(self.broken) or f"J of the best is {ratio} of yours"
        return f"Your slurm.conf is as good as any that was found: on later jobs, {why}."

    def lines(self) -> list[str]:
        """Lines for slurm.conf, each with what it is good for; none where nothing is certainly better."""
        return self.conf.lines(self.values) if self.better else []

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "about": self.about,
            "better": self.better,
            "reason": self.reason,
            "lines": self.lines(),
            "own": dict(self.conf.own),
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
        len(jobs),
        Split.ALL,
        length,
        MOST,
        settings.warm_jobs,
        most=WINDOW,
        fewest=fewest,
        whose="the search for a slurm.conf",
    )
    later, chosen = round(JUDGED * len(windows)), windows[0].jobs
    policies = (OWN, "rl") if daemon else (OWN,)
    settled = replace(settings, window=chosen, windows=len(windows), policies=policies)
    evaluation = ready(settled, jobs, shape, revision, windows)
    conf = SlurmConf.of(settled, jobs, shape)
    nothing = slice(0, 0)  # of earlier jobs: Slurm predicts nothing
    earlier = [
        replace(case, before=case.before.take(nothing), before_estimates=case.before_estimates.take(nothing))
        for case in evaluation.cases[:-later]
    ]
    every = round(1 / FIRST_LOOK)  # those of the first look are from all of the time
    cases = [case for first in range(every) for case in earlier[first::every]]
    shared = [flag for flag in settled.flags() if flag[0] in _SHARED]
    own_flags = ("--budget", budget, BUDGET), ("--accounts-may-lose", not fairly, False), ("--rltuned", daemon, True)
    with WorkerPool(processes) as pool:
        baseline = Baseline.of(conf, cases, pool)
        if math.isinf(mean(baseline.table(baseline.own)["objective"])):
            raise EvaluationError(
                f"no job of these windows can run on {shape.text}: name a --cluster that has what they ask for"
            )
        search = Search(baseline, pool, fairly=fairly)
        values = searched(search, budget, settings.seed, progress)
        judged = Baseline.of(conf, evaluation.cases[-later:], pool)
        runs = {"tuned": Run(OWN, values)}
        if daemon:
            runs |= {"rltuned": Run("rl"), "both": Run("rl", values)}
        works = [
            Work(case, conf.settings, (run,), own.start)
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
        about={**evaluation.meta, "command": command_line("tune", (*shared, *own_flags))},
        conf=conf,
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
