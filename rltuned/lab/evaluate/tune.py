"""The best that slurm.conf alone can do on a site's own jobs: searched on earlier windows, judged on later ones.

The cost of a candidate is J (`rltuned.core.objective`) over the site's own slurm.conf, with a penalty where it breaks a
bound of the gate, to which the daemon is held, too. The search is differential evolution (Storn and Price, Journal of
Global Optimization 11, 1997; SciPy's) on the logarithms of the numbers. What it finds is put back to the site's own
values as far as that costs next to nothing, so that few lines are left.
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
from rltuned.lab.evaluate.bootstrap import Comparison, compare, counts, mean
from rltuned.lab.evaluate.case import Case
from rltuned.lab.evaluate.evaluation import ready, whose
from rltuned.lab.evaluate.evaluation_report import difference
from rltuned.lab.evaluate.evaluation_settings import AGAIN, OWN, EvaluationSettings, command_line
from rltuned.lab.evaluate.harm import ACCOUNTS, BOUNDS, Bound, Harm, harms
from rltuned.lab.evaluate.measure import Measured, beside_slurm, measured, over
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.slurm_conf import SlurmConf, Values
from rltuned.lab.evaluate.windows import MOST, RECENT, Split, Window, recent
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Workload

BUDGET: Final = 300  # candidates
_SHARED: Final = (
    *("trace", "from_sacct", "cluster", "weights", "slurm"),
    *("estimates", "objective", "window", "seed", "skip_bad"),
)
"""Options of `rltuned tune` that an evaluation has, too."""
POPULATION: Final = 20
SEARCHED: Final = 6
"""Windows that the search has, at most: each candidate is simulated on them."""
FIRST_LOOK: Final = 1 / 3  # share of the search's windows that every candidate is tried on, …
HOPELESS: Final = 0.1  # … and by how much it may cost more than the best there to be tried on the others
NEGLIGIBLE: Final = 0.001  # of J: what simplifying may cost
PENALTY: Final = 3.0  # of a unit beyond a bound
FAIRNESS: Final = tuple(bound.metric for bound in ACCOUNTS)
SHOWN: Final = {
    "objective": "J",
    "wait_mean": "wait",
    "bsld_mean": "slowdown",
    "wait_p99": "wait p99",
    "idle": "idle GPUs",
    "utilization": "GPUs in use",
}
"""Metrics of the judgement, over the site's own slurm.conf, and their headings."""


@dataclass(frozen=True)
class Baseline:
    """Windows with what the site's own slurm.conf does on them, and what differs by chance."""

    conf: SlurmConf
    bounds: tuple[Bound, ...]
    """What a slurm.conf may not cost: those of the gate, over the site's own slurm.conf."""
    cases: list[Case]
    own: Measured
    again: Measured
    pool: WorkerPool

    @classmethod
    def of(cls, conf: SlurmConf, cases: Sequence[Case], pool: WorkerPool, *, fairly: bool) -> "Baseline":
        """Simulate the site's own slurm.conf. `fairly`: bounds of what accounts wait count."""
        own, again = contender(OWN, conf.settings), contender(AGAIN, conf.settings)
        beside = beside_slurm(cases, own, pool)
        by_site, by_chance = measured(beside, (own, again), pool)
        bounds = tuple(bound for bound in BOUNDS if fairly or bound not in ACCOUNTS)
        return cls(conf, bounds, beside, by_site, by_chance, pool)

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

    def harms(self, found: Measured) -> list[Harm]:
        """Bounds that it does not keep on the first windows, as many as were found."""
        first = slice(len(found["objective"]))
        own, slurm, chance = (
            {bound.metric: mean(of[bound.metric][first]) for bound in self.bounds}
            for of in (found, self.own, self.again)
        )
        return list(harms(own, slurm, chance, self.bounds))


# --- searching


class Search:
    """Tries candidates on the earlier windows, each once. Deterministic, however many processes there are."""

    def __init__(self, windows: Baseline) -> None:
        self.windows = windows
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
        beyond = self.windows.harms(found)
        value = mean(found["objective"])
        return value + PENALTY * math.fsum(harm.excess for harm in beyond), math.inf if beyond else value


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
    jobs: tuple[int, int]  # of a window of each
    slurm_wait: float  # seconds, the mean wait with the site's own slurm.conf on the later windows
    compared: Mapping[str, Mapping[str, Comparison]]
    """By policy and metric of `SHOWN`: over the site's own slurm.conf."""
    fairness: Mapping[str, Mapping[str, float]]
    """By policy, "chance" among them, and metric of `FAIRNESS`."""
    over_again: Comparison  # J of the tuned slurm.conf over that of the site's own once more
    broken: Sequence[str]  # bounds that the tuned slurm.conf breaks on the later windows, in words

    @property
    def better(self) -> bool:
        """Whether it is certainly better than the site's own, simulated twice, and keeps the bounds."""
        certain = self.compared["tuned"]["objective"].lower and self.over_again.lower
        return self.values != self.conf.own and not self.broken and certain

    @property
    def reason(self) -> str:
        """In a sentence."""
        if self.values == self.conf.own:
            return "Your slurm.conf is as good as any that was found."
        ratio = self.compared["tuned"]["objective"]
        if self.better:
            return f"With these lines J is certainly lower: {ratio} of what your slurm.conf gives.{self._beside}"
        why = "; ".join(self.broken) or f"J of the best is {ratio} of yours, and {self.over_again} of yours once more"
        return f"Your slurm.conf is as good as any that was found: on later jobs, {why}."

    @property
    def _beside(self) -> str:
        """What rltuned would do, without these lines and with them."""
        if "rltuned" not in self.compared:
            return ""
        alone, both = (self.compared[name]["objective"] for name in ("rltuned", "both"))
        lines, ours = (1.0 if of.ratio is None else of.ratio for of in (self.compared["tuned"]["objective"], alone))
        most = "They gain more than rltuned does" if lines < ours else "rltuned gains more"
        return f" {most}: {alone} without them, and {both} on top of them."

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
            "windows": {
                name: {"count": count, "jobs": jobs}
                for name, count, jobs in zip(("searched", "judged"), self.windows, self.jobs, strict=True)
            },
            "slurm_wait": self.slurm_wait,
            "over_own": {
                name: {metric: asdict(one) for metric, one in of.items()} for name, of in self.compared.items()
            },
            "objective_over_own_again": asdict(self.over_again),
            "fairness": {
                name: {metric: value if math.isfinite(value) else None for metric, value in of.items()}
                for name, of in self.fairness.items()
            },
        }

    def table(self) -> Table:
        """What each does on the later jobs, for people."""
        (searched, judged), (long, jobs) = self.windows, self.jobs
        shown = Table(
            title=f"{whose(self.about)}\n{judged} later windows of {jobs:,} jobs, over your slurm.conf, with which "
            f"they wait {self.slurm_wait / 3600.0:.1f} h",
            caption=f"{self.candidates} candidates on {searched} earlier windows of {long:,} jobs. accounts worse: a "
            f"share; worst tenth: their wait over that with yours; by chance {self._fares('chance')}. idle GPUs: while "
            "jobs wait",
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

    `settings`: of `as_configured`, with the site's weights and scheduler. `length`: jobs of a window; None: as many as
    a site's queue needs, or as there are. `fairly`: accounts may not lose beyond chance. `daemon`: judge rltuned, too,
    alone and on top. Raises EvaluationError: too little history. ModelError: the model was refused.
    """
    later = recent(len(jobs), Split.ALL, length, MOST, settings.warm_jobs, whose="the search for a slurm.conf")
    earlier = _earlier(later[0], length, settings.warm_jobs)
    policies = (OWN, "rl") if daemon else (OWN,)
    settled = replace(settings, window=later[0].jobs, windows=len(later), policies=policies)
    evaluation = ready(settled, jobs, shape, revision, later)
    conf = SlurmConf.of(settled, jobs, shape)
    nothing = slice(0, 0)  # of earlier jobs: Slurm predicts nothing
    found_earlier = [
        replace(case, before=case.before.take(nothing), before_estimates=case.before_estimates.take(nothing))
        for case in ready(settled, jobs, shape, revision, earlier).cases
    ]
    every = round(1 / FIRST_LOOK)  # those of the first look are from all of the time
    searching = [case for first in range(every) for case in found_earlier[first::every]]
    options = settled.options()
    shared = {name: options[name] for name in _SHARED}
    own_options = {
        "budget": budget if budget != BUDGET else None,
        "accounts_may_lose": not fairly,
        "no_rltuned": not daemon,
    }
    with WorkerPool(processes) as pool:
        baseline, judged = (Baseline.of(conf, of, pool, fairly=fairly) for of in (searching, evaluation.cases))
        if not all(np.isfinite(over(settings.objective, of.own, of.own)).any() for of in (baseline, judged)):
            raise EvaluationError(
                f"no job of these windows can run on {shape.text}: name a --cluster that has what they ask for"
            )
        search = Search(baseline)
        values = searched(search, budget, settings.seed, progress)
        runs: dict[str, tuple[str, Values | None]] = {"tuned": (OWN, values)}
        if daemon:
            runs |= {"rltuned": ("rl", None), "both": ("rl", values)}
        found = dict(zip(runs, judged.tried(list(runs.values()), progress=progress), strict=True))
    own, again = ({**of, "objective": over(settings.objective, of, judged.own)} for of in (judged.own, judged.again))
    drawn = counts(len(later), settings.seed)
    return Tuned(
        about={**evaluation.meta, "command": command_line("tune", shared | own_options)},
        conf=conf,
        values=values,
        candidates=len(search.tried),
        windows=(len(earlier), len(later)),
        jobs=(earlier[0].jobs, later[0].jobs),
        slurm_wait=mean(own["wait_mean"]),
        compared={
            name: {metric: compare(of[metric], own[metric], drawn) for metric in SHOWN} for name, of in found.items()
        },
        fairness={
            name: {metric: mean(of[metric]) for metric in FAIRNESS}
            for name, of in {"chance": judged.again, **found}.items()
        },
        over_again=compare(found["tuned"]["objective"], again["objective"], drawn),
        broken=list(map(str, judged.harms(found["tuned"]))),
    )


def _earlier(later: Window, length: int | None, warm: int | None) -> tuple[Window, ...]:
    """Windows for the search, all before the `later` ones: long enough to have the queue of the site, if there are
    three. `length`: of each, if asked for. `warm`: jobs before each, as far as there are any; None: as many as it has.
    """
    there = later.start - min(later.jobs if warm is None else warm, later.start // 4)
    jobs = length if length is not None else max(later.jobs, min(RECENT, there // 3))
    count = min(max(there // jobs, 1), SEARCHED)
    return tuple(Window(index, later.start - (count - index) * jobs, jobs) for index in range(count))
