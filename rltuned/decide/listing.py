"""What `rltuned plan` shows of a decision: objects with names, in the planned order, for people and for jq alike."""

from collections.abc import Callable
from typing import Any

from rltuned.decide.decision import DecisionRecord
from rltuned.decide.raising import Stop


def listing(record: DecisionRecord, shown: Callable[[int], bool] = lambda _: True) -> dict[str, Any]:
    """Plain data of a decision, as far as it is about the jobs that are `shown` (by id). Priorities and places are
    those that Slurm alone gives where they say `slurm_`; 1 is the front of the queue. Times are in seconds.
    """
    jobs, window = record.jobs, record.window
    raised = {one.id: one for one in record.raises}
    listed: list[dict[str, Any]] = []
    for at in sorted(range(len(jobs)), key=jobs.rank.__getitem__):
        job = jobs.id[at]
        if not shown(job):
            continue
        one, way, lent = raised.get(job), record.placement.ways.get(job), record.lent.get(job)
        lenders = [] if one is None else [{"id": lender.id, "gpus": lender.gpus} for lender in one.lenders]
        listed.append(
            {
                "id": job,
                "raised": one is not None,
                "place": jobs.rank[at] + 1,
                "slurm_place": jobs.base_rank[at] + 1,
                "priority": jobs.target[at],
                "slurm_priority": jobs.base[at],
                "priority_now": jobs.current[at],
                "site_factor_now": None if jobs.site is None else jobs.site[at],
                "ahead_of": None if one is None else one.first,
                "borrows_seconds": None if one is None else one.seconds,
                "lenders": lenders,
                "stopped": None if jobs.stop[at] == Stop.NONE else Stop(jobs.stop[at]).name.lower(),
                "stopped_by": jobs.stopped_by[at] or None,
                "score": window.score[jobs.seen[at]] if jobs.seen[at] >= 0 else None,
                "waited_seconds": jobs.wait[at],
                "may_lend_gpu_seconds": jobs.may_lend[at],
                "has_lent_gpu_seconds": 0.0 if lent is None else lent.lent,
                "placed": None if way is None else {"kind": way.kind, "nodes": list(way.nodes)},
            }
        )
    return {
        "time": record.time,
        "policy": record.policy,
        "policy_why": record.policy_why,
        "lend": {"share": record.share, "most": record.most},
        "placement": record.placement.outcome,
        "jobs": listed,
        "left": [{"id": job, "why": veto.value} for veto, ids in record.vetoed.items() for job in ids if shown(job)],
        "changes": [
            {"job": one.job_id, "field": one.field.value, "before": one.before, "after": one.after}
            for one in record.changes
            if shown(one.job_id)
        ],
    }
