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
from rich.table import Table
from scipy.optimize import differential_evolution

from rltuned.core.errors import EvaluationError
from rltuned.core.tables import Floats
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import Progress, silent
from rltuned.lab.evaluate.bootstrap import FEWEST, MOST_WORSE, Comparison, compare, counts, mean
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation import ready, whose
from rltuned.lab.evaluate.evaluation_report import difference
from rltuned.lab.evaluate.evaluation_settings import AGAIN, OWN, EvaluationSettings, command_line
from rltuned.lab.evaluate.harm import ACCOUNTS, harms
from rltuned.lab.evaluate.measure import Measured, beside_slurm, measured, over
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.slurm_conf import SlurmConf, Values
from rltuned.lab.evaluate.windows import MOST, Split, recent
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload

WINDOW: Final = 256  # jobs of a window: each candidate is simulated on dozens of them
BUDGET: Final = 300  # candidates
_SHARED: Final = (
    *("trace", "from_sacct", "cluster", "weights", "slurm"),
    *("estimates", "objective", "window", "seed", "skip_bad"),
)
"""Options of `rltuned tune` that an evaluation has, too."""
POPULATION: Final = 20
JUDGED: Final = 1 / 3  # share of the windows, the latest, that the search never sees
FIRST_LOOK: Final = 1 / 3  # share of the search's windows that every candidate is tried on, …
HOPELESS: Final = 0.1  # … and by how much it may cost more than the best there to be tried on the others
NEGLIGIBLE: Final = 0.001  # of J: what simplifying may cost
PENALTY: Final = 3.0  # of a unit beyond a bound
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


@dataclass(frozen=True)
class Baseline:
    """Windows with what the site's own slurm.conf does on them, and what differs by chance."""

    conf: SlurmConf
    cases: list[Case]
    own: Measured
    again: Measured
    pool: WorkerPool

    @classmethod
    def of(cls, conf: SlurmConf, cases: Sequence[Case], pool: WorkerPool) -> "Baseline":
        """Simulate the site's own slurm.conf."""
        own, again = contender(OWN, conf.settings), contender(AGAIN, conf.settings)
        beside = beside_slurm(cases, own, pool)
        by_site, by_chance = measured(beside, (own, again), pool)
        return cls(conf, beside, by_site, by_chance, pool)

    def tried(
        self, runs: Sequence[tuple[str, Values | None]], windows: slice = slice(None), progress: Progress = silent
    ) -> list[dict[str, Floats]]:
        """What policies, each with a slurm.conf (None: the site's own), do on these windows; with J over the site's own
        as `objective`.
        """
        if not runs:
            return []
        contenders = [contender(policy, self.conf.settings, values) for policy, values in runs]
        found = measured(self.cases[windows], contenders, self.pool, progress, "judging", at_once=len(runs))
        own = {metric: values[windows] for metric, values in self.own.items()}
        return [{**of, "objective": over(self.conf.settings.objective, of, own)} for of in found]

    def excess(self, found: Measured, bounds: Mapping[str, float], *, fairly: bool) -> dict[str, float]:
        """How far beyond its bound each metric is on the first windows; none that keeps it. `fairly`: those of accounts
        count.
        """
        first = slice(len(found["objective"]))
        ratio = {
            name: mean(found[name]) / max(mean(self.own[name][first]), 1.0) - most for name, most in bounds.items()
        }
        beyond = {name: value for name, value in ratio.items() if value > 0.0}
        if fairly:
            again = {name: mean(self.again[name][first]) for name in FAIRNESS}
            ours = {name: mean(found[name]) for name in FAIRNESS}
            beyond |= {harm.words: harm.excess for harm in harms(ours, {}, again, ACCOUNTS)}
        return beyond


# --- searching


class Search:
    """Tries candidates on the earlier windows, each once. Deterministic, however many processes there are."""

    def __init__(self, windows: Baseline, *, fairly: bool) -> None:
        self.windows, self.fairly = windows, fairly
        self.tried: dict[tuple[float, ...], tuple[float, float]] = {}
        """By values: cost, and J where every window was looked at and all bounds are kept; else infinite."""
        self._first = max(round(FIRST_LOOK * len(windows.cases)), 1)
        self._best_first = math.inf

    def costs(self, candidates: Sequence[Values], *, wholly: bool = False) -> list[tuple[float, float]]:
        """Cost and J of each; `wholly`: however bad they look at first."""
        keys = [tuple(values.values()) for values in candidates]
        new = {key: values for key, values in zip(keys, candidates, strict=True) if key not in self.tried}
        first = self.windows.tried([(OWN, values) for values in new.values()], slice(self._first))
        looks = [self._judged(found)[0] for found in first]
        self._best_first = min([self._best_first, *looks])
        good = [wholly or look <= self._best_first + HOPELESS for look in looks]
        promising = [(OWN, values) for values, on in zip(new.values(), good, strict=True) if on]
        more = iter(self.windows.tried(promising, slice(self._first, None)))
        for key, found, look, on in zip(new, first, looks, good, strict=True):
            self.tried[key] = self._judged(_joined(found, next(more))) if on else (look, math.inf)
        return [self.tried[key] for key in keys]

    def _judged(self, found: Measured) -> tuple[float, float]:
        beyond = self.windows.excess(found, BOUNDS, fairly=self.fairly)
        value = mean(found["objective"])
        return value + PENALTY * math.fsum(beyond.values()), math.inf if beyond else value


def _joined(first: Measured, more: Measured) -> Measured:
    return {metric: np.concatenate([values, more[metric]]) for metric, values in first.items()}


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

    about: Mapping[str, Any]  # program, trace, cluster and settings, as a report of an evaluation has them
    conf: SlurmConf
    values: Values
    candidates: int  # that were tried
    windows: tuple[int, int]  # of the search, and of the judgement
    jobs: int  # of a window
    compared: Mapping[str, Mapping[str, Comparison]]
    """By policy and metric of `SHOWN`: over the site's own slurm.conf."""
    fairness: Mapping[str, Mapping[str, float]]
    """By policy, "chance" among them, and metric of `FAIRNESS`."""
    broken: Sequence[str]  # bounds that the tuned slurm.conf breaks on the later windows, in words

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

    def table(self) -> Table:
        """What each does on the later jobs, for people."""
        searched, judged = self.windows
        shown = Table(
            title=f"{whose(self.about)}\n{judged} later windows of {self.jobs} jobs, over your slurm.conf",
            caption=f"{self.candidates} candidates on {searched} earlier windows. accounts worse: a share; worst "
            f"tenth: their wait over that with yours; by chance {self._fares('chance')}. idle GPUs: while jobs wait",
            caption_justify="left",
        )
        shown.add_column("")
        for heading in (*SHOWN.values(), "accounts worse, worst tenth"):
            shown.add_column(heading, justify="right")
        names = {"tuned": "slurm.conf, tuned", "rltuned": "rltuned", "both": "rltuned on top"}
        for name, of in self.compared.items():
            shown.add_row(names[name], *(difference(of[metric]) for metric in SHOWN), self._fares(name))
        return shown

    def _fares(self, name: str) -> str:
        return ", ".join(f"{share:.2f}" if math.isfinite(share) else "–" for share in self.fairness[name].values())


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

    `settings`: of `as_configured`, with the site's weights and scheduler. `length`: jobs of a window; None: as
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
    options = settled.options()
    shared = {name: options[name] for name in _SHARED}
    own_options = {
        "budget": budget if budget != BUDGET else None,
        "accounts_may_lose": not fairly,
        "no_rltuned": not daemon,
    }
    with WorkerPool(processes) as pool:
        baseline = Baseline.of(conf, cases, pool)
        if not np.isfinite(over(settings.objective, baseline.own, baseline.own)).any():
            raise EvaluationError(
                f"no job of these windows can run on {shape.text}: name a --cluster that has what they ask for"
            )
        search = Search(baseline, fairly=fairly)
        values = searched(search, budget, settings.seed, progress)
        judged = Baseline.of(conf, evaluation.cases[-later:], pool)
        runs: dict[str, tuple[str, Values | None]] = {"tuned": (OWN, values)}
        if daemon:
            runs |= {"rltuned": ("rl", None), "both": ("rl", values)}
        found = dict(zip(runs, judged.tried(list(runs.values()), progress=progress), strict=True))
    own = {**judged.own, "objective": over(settings.objective, judged.own, judged.own)}
    drawn = counts(later, settings.seed)
    beyond = judged.excess(found["tuned"], LATER_BOUNDS, fairly=fairly)
    return Tuned(
        about={**evaluation.meta, "command": command_line("tune", shared | own_options)},
        conf=conf,
        values=values,
        candidates=len(search.tried),
        windows=(len(cases), later),
        jobs=chosen,
        compared={
            name: {metric: compare(of[metric], own[metric], drawn) for metric in SHOWN} for name, of in found.items()
        },
        fairness={
            name: {metric: mean(of[metric]) for metric in FAIRNESS}
            for name, of in {"chance": judged.again, **found}.items()
        },
        broken=[f"{name.replace('_', ' ')} is beyond its bound by {value:.3f}" for name, value in beyond.items()],
    )
