"""What training begins with, and which windows are learned from: of the training part of each trace, made harder and
easier.

A window in which jobs hardly wait under the base rule says nothing about orders, so it is left out. What a site will be
like is not known, so load, size of the cluster and error of the estimates are drawn for each window. Where users are
known, half of the windows have the run times that the daemon would have predicted: that is what it serves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.errors import EvaluationError
from rltuned.core.tables import Singles
from rltuned.decide.rank.actor import Actor, plain_rule
from rltuned.decide.see.features import RUN_TIME_HORIZON
from rltuned.decide.see.observation import GPUS_SCALE
from rltuned.lab.evaluate.case import Case, cases
from rltuned.lab.evaluate.windows import Split, Window, bounds, draw
from rltuned.simulate.run_times import at_submission
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.workload.jobs import Estimates, Workload
from rltuned.simulate.workload.simulated_estimates import EstimateKind, estimate

MIXED: Final = "mixed"
"""`--estimates`: the error is drawn for each window."""

HISTORY: Final = EstimateKind.HISTORY.value
_ERRORS: Final = ("true", "noisy:0.5", "noisy:1", "noisy:1.5", "noisy:2")


class Site(NamedTuple):
    """A trace and the cluster that it is replayed on."""

    jobs: Workload
    shape: ClusterShape
    predicted: Estimates | None = None
    """Of `jobs`, their run times as the daemon would have predicted them at their submissions; None: no windows have
    these (`with_predictions`).
    """


def with_predictions(site: Site, estimates: str, seed: int) -> Site:
    """The site with `Site.predicted`, where `estimates` (of `CurriculumSettings`) want that and its users are known.
    EvaluationError: `history` is wanted, and most jobs have no user.
    """
    if estimates not in {MIXED, HISTORY}:
        return site
    jobs, unknown = site.jobs, int((site.jobs.user.codes < 0).sum())
    if 2 * unknown >= len(jobs):
        if estimates == MIXED:
            return site
        raise EvaluationError(
            f"{jobs.source.name}: {unknown:,} of {len(jobs):,} jobs have no user, so that no history tells their run "
            f"times; use --estimates {MIXED}"
        )
    made = estimate(jobs, HISTORY, seed)
    expected = at_submission(jobs, made).expected
    run_time = np.where(np.isnan(expected), made.run_time, np.clip(expected, 1.0, made.time_limit))
    return site._replace(predicted=Estimates(made.time_limit, run_time))


def with_limits(jobs: Workload) -> bool:
    """Whether most jobs have a time limit of their users."""
    return bool(2 * np.isnan(jobs.time_limit).sum() < len(jobs))


@dataclass(frozen=True)
class CurriculumSettings:
    """What windows are made of."""

    window: tuple[int, int] = (96, 384)  # jobs of each, log-uniform
    candidates: int = 2048
    """Windows that are tried with the base rule. Those with headroom are learned from, repeatedly."""
    load: tuple[float, float] = (0.7, 1.5)
    """Jobs are submitted so many times as fast, log-uniform."""
    drained: tuple[float, float] = (0.0, 0.4)
    """Share of the nodes that are drained, in half of the windows; their jobs are submitted as much slower."""
    least_wait: float = 60.0
    """Seconds that the base rule must let a job wait on average."""
    estimates: str = MIXED  # as `rltuned evaluate --estimates`, or `MIXED`


def candidate(sites: Sequence[Site], settings: CurriculumSettings, seed: int, index: int) -> Case:
    """The window of that number: a function of its arguments alone. The sites are those of `with_predictions`.
    EvaluationError: the training part of a trace is shorter than a window.
    """
    rng = np.random.default_rng([seed, 1, index])
    site = sites[index % len(sites)]
    first, last = bounds(len(site.jobs), Split.TRAIN)
    if last - first < settings.window[0]:
        raise EvaluationError(
            f"{site.jobs.source.name}: its training part has {last - first:,} jobs, fewer than a window of "
            f"{settings.window[0]:,}: nothing can be learned from so few jobs"
        )
    length = min(round(float(np.exp(rng.uniform(*np.log(settings.window))))), last - first)
    start = int(rng.integers(first, last - length + 1))
    rows = slice(start, start + length)
    jobs = site.jobs.take(rows)
    errors: tuple[str, ...] = (settings.estimates,)
    if settings.estimates == MIXED:
        errors = (*_ERRORS, "limit", "limit") if with_limits(site.jobs) else _ERRORS
        errors += (HISTORY,) * len(errors) if site.predicted is not None else ()
    how = errors[int(rng.integers(len(errors)))]
    if how == "limit" and settings.estimates == MIXED and not with_limits(jobs):
        how = _ERRORS[-1]  # the trace has limits, but this window has none
    load = float(np.exp(rng.uniform(*np.log(settings.load))))
    shape = site.shape
    if rng.random() < 0.5:
        shape, kept = _drained(shape, rng.uniform(*settings.drained), rng)
        load *= kept
    jobs = replace(jobs, submit_time=(jobs.submit_time - jobs.submit_time[0]) / load)
    predicted = site.predicted if how == HISTORY else None
    made = predicted.take(rows) if predicted else estimate(jobs, how, int(rng.integers(2**31)))
    none = jobs.take(slice(0))
    window, nothing = Window(index, start, length), estimate(none, "true", 0)
    return Case(window, shape, jobs, 0, made, none, nothing, predicted=predicted is not None)


def _drained(shape: ClusterShape, share: float, rng: np.random.Generator) -> tuple[ClusterShape, float]:
    """The cluster without some of its nodes, and the share of its GPUs that is left; one node of each kind stays."""
    nodes = shape.nodes
    order = rng.permutation(np.flatnonzero(nodes.usable))
    kinds = np.unique(np.column_stack((nodes.gpus, nodes.cpus)), axis=0, return_inverse=True)[1].reshape(-1)
    away = order[: int(share * len(order))]
    stay = np.unique(kinds[order], return_index=True)[1]
    away = np.setdiff1d(away, order[stay])
    usable = nodes.usable.copy()
    usable[away] = False
    before = max(int(nodes.gpus[nodes.usable].sum()), 1)
    kept = int(nodes.gpus[usable].sum()) / before
    return replace(shape, nodes=replace(nodes, usable=usable)), max(kept, 1e-3)


def validation_windows(
    sites: Sequence[Site], length: int, count: int, seed: int, estimates: str
) -> list[tuple[str, Case]]:
    """Windows that decide which checkpoint is kept, each with the group that it is averaged with.

    `count` of each trace, of the part behind the training part, as they are there. Where estimates are mixed, predicted
    ones, true ones, noisy ones of σ = 1.5 and the users' own take turns, as far as the trace has them. A part that is
    shorter than `length` gives shorter ones; EvaluationError: it is too short.
    """
    found = []
    files = [site.jobs.source.name for site in sites]
    for site in sites:
        first, last = bounds(len(site.jobs), Split.VALIDATION)
        fits = min(length, max((last - first) // 4, 1))
        windows = draw(len(site.jobs), fits, min(count, last - first - fits + 1), seed, Split.VALIDATION)
        kinds: tuple[str, ...] = (estimates,)
        if estimates == MIXED:
            kinds = ("true", "noisy:1.5", "limit")[: 2 + with_limits(site.jobs)]
            kinds = (HISTORY, *kinds) if site.predicted else kinds
        name = site.jobs.source.name
        group = name if files.count(name) == 1 else f"{name} on {site.shape.text}"
        for turn, kind in enumerate(kinds):
            found += [(group, case) for case in cases_of(site, kind, seed, windows[turn :: len(kinds)])]
    return found


def cases_of(site: Site, kind: str, seed: int, windows: Sequence[Window]) -> Iterator[Case]:
    """These windows of a site as they are there, with one kind of estimates; of `HISTORY`, its own predictions."""
    predicted = site.predicted if kind == HISTORY else None
    for case in cases(site.jobs, predicted or estimate(site.jobs, kind, seed), site.shape, windows):
        yield replace(case, predicted=predicted is not None)


# --- what is begun with


def run_time_coefficients(cases: Sequence[Case]) -> Singles:
    """(3,) c of ln T = c0 + c1 ln r + c2 ln L by least squares over the jobs whose estimate is below their limit.

    (0, 1, 0), the estimate itself, where these are too few to say, and the limit counts as one of 30 days at most.
    """
    estimate_itself = np.array([0.0, 1.0, 0.0], dtype=np.float32)
    if not cases:
        return estimate_itself
    r = np.concatenate([case.estimates.run_time for case in cases])
    limit = np.minimum(np.concatenate([case.estimates.time_limit for case in cases]), RUN_TIME_HORIZON)
    true = np.maximum(np.concatenate([case.jobs.run_time for case in cases]), 1.0)
    known = r < limit
    if np.count_nonzero(known) < 100:
        return estimate_itself
    columns = np.column_stack((np.ones(known.sum()), np.log(r[known]), np.log(limit[known])))
    found, *_ = np.linalg.lstsq(columns, np.log(true[known]), rcond=None)
    return np.asarray(found, dtype=np.float32)


def smallest_area_first(name: str, run_time: Singles) -> Actor:
    """SAF on the run times that these coefficients expect."""
    return plain_rule(
        name, run_time, requested_time=-1.0, requested_gpus=-GPUS_SCALE / float(np.log1p(RUN_TIME_HORIZON))
    )
