"""Whose gain and whose loss a replay shows, over time and by group, and how well run times were predicted."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rltuned.core.tables import Bools, Category, Floats, Ints, owners
from rltuned.lab.evaluate.evaluation_settings import AGAIN
from rltuned.lab.evaluate.window_metrics import against_slurm
from rltuned.lab.report.replay import SLURM, Replay
from rltuned.simulate.workload.jobs import Workload

SIZES: Final = ("no GPU", "1 GPU", "2–4 GPUs", "5–8 GPUs", "9–16 GPUs", "17–64 GPUs", "over 64 GPUs")
_MOST: Final = (0, 1, 4, 8, 16, 64)  # GPUs of each but the last
SMALL: Final = 10  # a group of fewer jobs is counted with the others: its mean says nothing
MOST_GROUPS: Final = 15
LOSSES: Final = 20


def by_group(found: Replay) -> dict[str, list[dict[str, Any]]]:
    """Mean waits by size, partition, QOS and account, the largest group first; sizes in order."""
    jobs = found.jobs
    sizes = Category(np.searchsorted(_MOST, jobs.gpus).astype(np.int32), SIZES)
    kinds = {"size": sizes, "partition": jobs.partition, "qos": jobs.qos, "account": jobs.account}
    return {kind: _groups(found, category, ordered=kind == "size") for kind, category in kinds.items()}


def _groups(found: Replay, category: Category, *, ordered: bool) -> list[dict[str, Any]]:
    sizes = np.bincount(category.codes[category.codes >= 0], minlength=len(category.names))
    if not len(sizes):
        return []
    order = range(len(sizes)) if ordered else np.argsort(-sizes, kind="stable").tolist()
    named = [code for code in order if sizes[code] >= (1 if ordered else SMALL)][:MOST_GROUPS]
    chosen = [(category.names[code], category.codes == code) for code in named]
    chosen.append(("others", ~np.isin(category.codes, named)))
    return [_group(found, name, of) for name, of in chosen if of.any()]


def _group(found: Replay, name: str, chosen: Bools) -> dict[str, Any]:
    gained = found.wait[found.policy] - found.wait[SLURM]
    return {
        "name": name,
        "jobs": int(chosen.sum()),
        **{f"wait_{of}": round(float(values[chosen].mean()), 1) for of, values in found.waits.items()},
        "change": round(float(gained[chosen].mean()), 1),
        "sooner": int((gained[chosen] < -60.0).sum()),
        "later": int((gained[chosen] > 60.0).sum()),
    }


def losses(found: Replay) -> list[dict[str, Any]]:
    """The jobs that wait longest more under rltuned than under Slurm's order."""
    jobs, more = found.jobs, found.wait[found.policy] - found.wait[SLURM]
    rows = [int(row) for row in np.argsort(-more, kind="stable")[:LOSSES] if more[row] > 60.0]
    return [
        {
            "job": int(jobs.job_id[row]),
            "user": jobs.user.value(row),
            "account": jobs.account.value(row),
            "partition": jobs.partition.value(row),
            "qos": jobs.qos.value(row),
            "gpus": int(jobs.gpus[row]),
            "run_time": round(float(jobs.run_time[row]), 1),
            **{f"wait_{of}": round(float(values[row]), 1) for of, values in found.waits.items()},
            "more": round(float(more[row]), 1),
        }
        for row in rows
    ]


def fairness(found: Replay) -> dict[str, dict[str, float | None]]:
    """How accounts and jobs fare under rltuned, and by chance (Slurm's order once more): `AgainstSlurm`. Users count,
    where all jobs are of one account. None: too few jobs of each, or not simulated.
    """
    jobs = found.jobs
    first, every = float(jobs.submit_time.min()), np.ones(len(jobs), dtype=np.bool_)
    slurm = found.start[SLURM] - first

    def over(name: str) -> dict[str, float | None]:
        start = found.start[name] - first if name in found.start else np.full(len(jobs), np.nan)
        fares = against_slurm(jobs.submit_time - first, start, slurm, every, owners(jobs.account, jobs.user))
        return {of: round(value, 4) if np.isfinite(value) else None for of, value in fares._asdict().items()}

    return {"rltuned": over(found.policy), "chance": over(AGAIN)}


def lending(
    found: Replay, lent: Mapping[int, float], loans: Mapping[tuple[int, int], float], *, names: bool
) -> list[dict[str, Any]]:
    """Who lent, to whom, and how long the lenders waited: by account, or user where all jobs are of one; who lent the
    most first. Seconds, GPU-seconds. Jobs that were not replayed are left out.

    `lent`: by id of the lender. `loans`: by ids of borrower and lender. Without `names` all are together.
    """
    jobs = found.jobs
    of = owners(jobs.account, jobs.user)
    group = of.codes if names else np.zeros(len(jobs), dtype=np.int32)
    row_of = {job: row for row, job in enumerate(jobs.job_id.tolist())}
    lenders = {row_of[job]: seconds for job, seconds in lent.items() if job in row_of}
    borrowers: dict[int, float] = defaultdict(float)
    for (borrower, _), seconds in loans.items():
        if borrower in row_of:
            borrowers[row_of[borrower]] += seconds
    rows: list[dict[str, Any]] = []
    for code in np.unique(group[[*lenders, *borrowers]]).tolist():
        gave = [row for row in lenders if group[row] == code]
        got = [row for row in borrowers if group[row] == code]
        waits = {name: round(float(wait[gave].mean()), 1) if gave else None for name, wait in found.waits.items()}
        rows.append(
            {
                "name": of.names[code] if names and code >= 0 else "",
                "lent": round(sum(lenders[row] for row in gave), 1),
                "lenders": len(gave),
                **{f"wait_{name}": wait for name, wait in waits.items()},
                "borrowed": round(sum(borrowers[row] for row in got), 1),
                "borrowers": len(got),
            }
        )
    return sorted(rows, key=lambda row: -row["lent"])[:MOST_GROUPS]


def over_time(found: Replay, since: float, until: float, points: int) -> dict[str, list[float]]:
    """Means over stretches of the period, of the replayed jobs: how many wait, and the GPUs that they hold."""
    edges = np.linspace(since, until, points + 1)
    submitted, gpus = found.jobs.submit_time, found.jobs.gpus.astype(np.float64)
    series: dict[str, list[float]] = {"time": ((edges[:-1] + edges[1:]) / 2).round(1).tolist()}
    for of, name in found.names.items():
        start, end = found.start[name], found.end[name]
        series[f"pending_{of}"] = _held(submitted, start, np.ones(len(gpus)), edges).round(2).tolist()
        series[f"gpus_{of}"] = _held(start, end, gpus, edges).round(2).tolist()
    return series


def _held(begin: Floats, end: Floats, weight: Floats, edges: Floats) -> Floats:
    """Mean of Σ weight of what lasts over [begin, end), in each stretch between two edges."""

    def area(moments: Floats) -> Floats:
        """∫ of what has begun, up to each edge: Σ weight · (edge − moment) over the moments before it."""
        order = np.argsort(moments, kind="stable")
        ordered, w = moments[order], weight[order]
        count, first = np.concatenate([[0.0], np.cumsum(w)]), np.concatenate([[0.0], np.cumsum(w * ordered)])
        at = np.searchsorted(ordered, edges)
        return np.asarray(count[at] * edges - first[at], dtype=np.float64)

    zero = edges[0]  # near the moments: epoch seconds times GPU-seconds would lose digits
    begin, end, edges = begin - zero, end - zero, edges - zero
    return np.asarray(np.diff(area(begin) - area(end)) / np.diff(edges), dtype=np.float64)


RATIOS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)  # bounds of the classes of run time over expectation


def prediction_quality(
    ids: Ints, run_time: Floats, predictions: Mapping[int, tuple[float, float | None, bool]]
) -> dict[str, Any] | None:
    """How run times compare with what was expected of them when the policy first saw the job, and with the limits.
    None where no job with a prediction has ended.
    """
    known = [row for row, job in enumerate(ids.tolist()) if job in predictions]
    if not known:
        return None
    took = np.maximum(run_time[known], 1.0)
    of = [predictions[int(ids[row])] for row in known]
    expected = np.maximum(np.array([one[0] for one in of]), 1.0)
    limits = np.array([np.nan if one[1] is None else max(one[1], 1.0) for one in of])
    return {
        "jobs": len(known),
        "learned": sum(one[2] for one in of),
        "bounds": list(RATIOS),
        "predicted": _shares(took / expected),
        "limit": _shares(took / limits),
        "within_2_predicted": _within(took / expected),
        "within_2_limit": _within(took / limits),
    }


def _shares(ratio: Floats) -> list[float]:
    finite = ratio[np.isfinite(ratio)]
    found = np.bincount(np.searchsorted(RATIOS, finite, side="right"), minlength=len(RATIOS) + 1)
    return [round(float(count) / max(len(finite), 1), 4) for count in found]


def _within(ratio: Floats) -> float | None:
    finite = ratio[np.isfinite(ratio)]
    return round(float(((finite >= 0.5) & (finite <= 2.0)).mean()), 4) if len(finite) else None


def canary(jobs: Workload, treated: set[int], others: set[int], seed: int) -> dict[str, Any] | None:
    """Real waits of the jobs of stage canary and of the others, and their ratio with a bootstrap interval over jobs.
    None where either has fewer than `SMALL` jobs.
    """
    inside = np.isin(jobs.job_id, list(treated - others))
    outside = np.isin(jobs.job_id, list(others - treated))
    waits = [jobs.wait_time[of & np.isfinite(jobs.wait_time)] for of in (inside, outside)]
    if min(map(len, waits)) < SMALL:
        return None
    rng = np.random.default_rng(seed)
    means = [np.array([of[rng.integers(0, len(of), len(of))].mean() for _ in range(2000)]) for of in waits]
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanpercentile(means[0] / means[1], [2.5, 97.5])
    mean = [float(of.mean()) for of in waits]
    return {
        "jobs": len(waits[0]),
        "others": len(waits[1]),
        "wait": round(mean[0], 1),
        "wait_others": round(mean[1], 1),
        "ratio": mean[0] / mean[1] if mean[1] > 0 else None,
        "lo": float(low) if np.isfinite(low) else None,
        "hi": float(high) if np.isfinite(high) else None,
    }
