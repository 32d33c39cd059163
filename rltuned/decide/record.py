"""The decision record: a plan as plain data, for the disk, for ``explain`` and for machines.

Columns rather than one object per job, so that 10,000 jobs stay small. No names of users or accounts are kept.
"""

from typing import Any, Final

import numpy as np

from rltuned.decide.plan import Plan
from rltuned.decide.ranks import ranks_of
from rltuned.decide.what_if import other_requests, rows_of
from rltuned.observe import FEATURES

RECORD_VERSION: Final = 1


def record(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data; `explain.explain` is its reader."""
    jobs, nodes = plan.snapshot.jobs, plan.snapshot.nodes
    observation = plan.observation
    ids = jobs.job_id[plan.rows]
    seen = np.full(len(ids), -1, dtype=np.intp)
    seen[plan.window] = np.arange(len(plan.window))
    ways = {}
    if plan.front.placement is not None:
        rows = plan.front.rows
        for way in plan.front.placement.ways:
            ways[str(jobs.job_id[rows[way.job]])] = {
                "kind": way.kind.value,
                "slot": way.slot,
                "nodes": [nodes.names[node] for node in way.nodes],
            }
    return {
        "version": RECORD_VERSION,
        "time": plan.snapshot.time,
        "policy": plan.policy,
        "mode": plan.config.decide.mode.value,
        "stage": plan.config.cycle.stage.value,
        "authority": plan.config.decide.authority,
        "age_bound": plan.config.decide.age_bound,
        "classes": list(plan.classes.names),
        "class_sizes": [len(members) for members in plan.classes.members],
        "features": list(FEATURES),
        "columns": list(observation.columns),
        "jobs": {
            "id": ids.tolist(),
            "class": plan.classes.of.tolist(),
            "base": plan.base.tolist(),
            "current": jobs.priority[plan.rows].tolist(),
            "target": plan.target.tolist(),
            "base_rank": plan.base_rank.tolist(),
            "rank": plan.rank.tolist(),
            "guards": plan.guards.tolist(),
            "held_behind": plan.held_behind.tolist(),
            "seen": seen.tolist(),
            "position": ranks_of(plan.queue).tolist(),
        },
        "window": {
            "score": plan.scores.tolist(),
            "values": observation.features.round(6).tolist(),
            "predicted": plan.predicted.tolist(),
            "wait": observation.wait.tolist(),
            "submit": observation.submit.tolist(),
            "priority": observation.priority.tolist(),
            **rows_of(observation),
        },
        "other_requests": other_requests(plan),
        "rollout": _rollout(plan),
        "vetoed": {veto.value: jobs.job_id[rows].tolist() for veto, rows in plan.scope.vetoed().items()},
        "placement": {
            "outcome": plan.front.placement.outcome.value if plan.front.placement is not None else "off",
            "apply": plan.config.placement.apply.value,
            "ways": ways,
        },
        "changes": [[change.job_id, str(change.field), change.before, change.after] for change in plan.changes],
        "outcomes": {},
    }


def _rollout(plan: Plan) -> dict[str, Any] | None:
    found = plan.rollout
    if found is None:
        return None
    moved = None if found.moved is None else int(plan.snapshot.jobs.job_id[found.moved])
    return {
        "rollouts": int(found.rollouts),
        "job": moved,
        "to": found.to and found.to.value,
        "gain": float(found.gain),
    }
