"""The decision record of a plan."""

import math
from collections.abc import Iterable

import numpy as np

from rltuned.cluster.changes import Change, Field, Outcome
from rltuned.config import Stage
from rltuned.decide.decision import (
    OFF,
    VERSION,
    ChangeRecord,
    DecisionRecord,
    JobColumns,
    PlacementRecord,
    RolloutRecord,
    RunTimeRecord,
    StartRecord,
    WayRecord,
    Window,
)
from rltuned.decide.plan import Plan
from rltuned.decide.ranks import ranks_of
from rltuned.decide.what_if import other_requests, rows_of
from rltuned.observe import FEATURES


def record(
    plan: Plan,
    *,
    stage: Stage | None = None,
    policy_why: str = "",
    rollout_trouble: str = "",
    results: Iterable[tuple[Change, Outcome, str]] = (),
    starts: StartRecord | None = None,
) -> DecisionRecord:
    """The record.

    Args:
        plan: the decision.
        stage: in force; the configured one by default.
        policy_why: why it is this policy, where the configuration says "auto".
        rollout_trouble: why no rollouts were made although they should.
        results: what became of the changes, and what Slurm said.
        starts: when jobs are expected to start.
    """
    jobs, observation = plan.snapshot.jobs, plan.observation
    ids = jobs.job_id[plan.rows]
    seen = np.full(len(ids), -1, dtype=np.intp)
    seen[plan.window] = np.arange(len(plan.window))
    own = rows_of(observation)
    outcomes: dict[int, dict[Field, Outcome]] = {}
    for change, outcome, _ in results:
        outcomes.setdefault(change.job_id, {})[change.field] = outcome
    return DecisionRecord(
        version=VERSION,
        time=plan.snapshot.time,
        policy=plan.policy,
        mode=plan.config.decide.mode,
        stage=plan.config.cycle.stage if stage is None else stage,
        authority=plan.config.decide.authority,
        age_bound=plan.config.decide.age_bound,
        classes=plan.classes.names,
        class_sizes=tuple(map(len, plan.classes.members)),
        features=tuple(FEATURES),
        columns=tuple(observation.columns),
        jobs=JobColumns(
            id=tuple(ids.tolist()),
            class_of=tuple(plan.classes.of.tolist()),
            base=tuple(plan.base.tolist()),
            current=tuple(jobs.priority[plan.rows].tolist()),
            target=tuple(plan.target.tolist()),
            base_rank=tuple(plan.base_rank.tolist()),
            rank=tuple(plan.rank.tolist()),
            guards=tuple(plan.guards.tolist()),
            held_behind=tuple(plan.held_behind.tolist()),
            seen=tuple(seen.tolist()),
            position=tuple(ranks_of(plan.queue).tolist()),
        ),
        window=Window(
            score=tuple(plan.scores.tolist()),
            values=tuple(map(tuple, observation.features.round(6).tolist())),
            predicted=tuple(plan.predicted.tolist()),
            wait=tuple(observation.wait.tolist()),
            submit=tuple(observation.submit.tolist()),
            priority=tuple(observation.priority.tolist()),
            state=own.state,
            run_time=own.run_time,
            time_limit=own.time_limit,
            gpus=own.gpus,
        ),
        other_requests=other_requests(plan),
        rollout=_rollout(plan),
        vetoed={veto: tuple(jobs.job_id[rows].tolist()) for veto, rows in plan.scope.vetoed().items()},
        placement=_placement(plan),
        changes=tuple(
            ChangeRecord(change.job_id, change.field, change.before, change.after) for change in plan.changes
        ),
        outcomes=outcomes,
        policy_why=policy_why,
        rollout_trouble=rollout_trouble,
        run_times=_run_times(plan),
        starts=starts,
    )


def _run_times(plan: Plan) -> RunTimeRecord | None:
    if plan.distribution is None:
        return None
    known = plan.distribution.take(plan.observation.rows)
    low, high = (
        tuple(round(value) if math.isfinite(value) else None for value in column.tolist())
        for column in (known.low, known.high)
    )
    return RunTimeRecord(low, high)


def _placement(plan: Plan) -> PlacementRecord:
    front, how = plan.front, plan.config.placement.apply
    if front.placement is None:
        return PlacementRecord(OFF, how, {})
    ids, names = plan.snapshot.jobs.job_id[front.rows].tolist(), plan.snapshot.nodes.names
    ways = {ids[way.job]: WayRecord(way.kind, tuple(names[node] for node in way.nodes)) for way in front.placement.ways}
    return PlacementRecord(front.placement.outcome, how, ways)


def _rollout(plan: Plan) -> RolloutRecord | None:
    found = plan.rollout
    if found is None:
        return None
    ids = plan.snapshot.jobs.job_id
    before = {row: place for place, row in enumerate(found.simulated, 1)}
    after = enumerate(found.order or found.simulated, 1)
    places = {int(ids[row]): (before[row], place) for place, row in after if before[row] != place}
    return RolloutRecord(found.rollouts, len(before), places, float(found.gain))
