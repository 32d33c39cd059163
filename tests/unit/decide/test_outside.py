"""Permute, never inflate: whatever is written, no job outside of a class has more of its jobs ahead than Slurm alone
gives.

The check below knows nothing of the code under test: it counts, for each outside job and for every set of its nodes.
"""

import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltuned.cluster import pools
from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.changes import Applied, Field, OverSubscribe
from rltuned.cluster.plain_tables import job_table, node_table
from rltuned.cluster.scheduler import SchedulerParameters
from rltuned.cluster.tables import Category, Partition, Snapshot
from rltuned.config import Config, DecideSection, PlacementApply, PlacementSection, ScopeSection
from rltuned.decide import Veto, explain, plan, record
from rltuned.decide.outside import EXACT_TURNS
from rltuned.policy.heuristics import by_name

from .conftest import NOW, pending

NODES = {"p1": "p100", "p2": "p100", "k1": "k80", "k2": "k80"}
PARTITIONS = {
    "all": ("p1", "p2", "k1", "k2"),
    "p": ("p1", "p2"),
    "k": ("k1", "k2"),
    "mixed": ("p2", "k1"),
    "urgent": ("p1", "p2", "k1", "k2"),
    "down": ("p1", "p2"),
}


def cluster(jobs, *, now=NOW):
    names = list(NODES)
    nodes = node_table(names, ["p100", "k80"], [[4, 0], [4, 0], [0, 4], [0, 4]])
    partitions = tuple(
        Partition(
            name,
            np.array([names.index(node) for node in of], dtype=np.int32),
            name != "down",
            10 if name == "urgent" else 1,
            OverSubscribe.NO,
            1,
            7 * 86400.0,
        )
        for name, of in PARTITIONS.items()
    )
    return Snapshot(now, (24, 11), jobs, nodes, partitions)


def settings_of(**sections):
    return Config(placement=PlacementSection(apply=PlacementApply.OFF)).model_copy(update=sections)


# --- the check ---


@dataclass(frozen=True)
class Job:
    """What the check knows of a pending job."""

    job_id: int
    turn: tuple[float, int]
    """Submission and id: slurmctld's tie-break."""
    places: dict
    """Partition → (tier, priority that Slurm alone gives, nodes that it wants, nodes that it can get)."""
    tasks: int
    reserved: bool
    """Slurm puts it before every job without a reservation."""
    of: str | None
    """Its class; None: it is not managed."""


def ahead(value, turn, level, other_turn):
    return value > level or (value == level and turn < other_turn)


def count(jobs, values, tier, level, turn, wanted):
    """Jobs of a class ahead of a place that could run on one of the wanted nodes. `values`: partition → priority, by
    id."""
    total = 0
    for job in jobs:
        reach = set()
        for name, (of_tier, _, _, nodes) in job.places.items():
            if of_tier == tier and ahead(values[job.job_id][name], job.turn, level, turn):
                reach |= nodes
        total += job.tasks * bool(reach & wanted)
    return total


def subsets(nodes):
    ordered = sorted(nodes)
    return (set(some) for some in chain.from_iterable(combinations(ordered, n) for n in range(1, len(ordered) + 1)))


def inflated(jobs, values, since=None):
    """(class, outside job, nodes, now, alone) of each place that lost something; with `since`: lost more than
    before."""
    alone = {job.job_id: {name: place[1] for name, place in job.places.items()} for job in jobs}
    classes = {}
    for job in jobs:
        if job.of is not None:
            classes.setdefault(job.of, []).append(job)
    found = []
    for name, members in classes.items():
        for outside in jobs:
            if outside.of == name or outside.reserved != members[0].reserved:
                continue
            for tier, level, nodes, _ in outside.places.values():
                if level <= 0:
                    continue
                for wanted in subsets(nodes):
                    now = count(members, values, tier, level, outside.turn, wanted)
                    before = count(members, alone, tier, level, outside.turn, wanted)
                    if since is not None:
                        before = max(before, count(members, since, tier, level, outside.turn, wanted))
                    if now > before:
                        found.append((name, outside.job_id, sorted(wanted), now, before))
    return found


def could_run(snapshot, row, partition):
    """Nodes of one partition on which a job could run."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    part = snapshot.partition_by_name[partition]
    wanted = jobs.gpu_type.value(row)
    per_node = max(int(jobs.gpus_per_node[row]), 1) if jobs.gpus[row] else 0
    return {
        nodes.names[node]
        for node in part.nodes.tolist()
        if (nodes.gpus[node, nodes.gpu_types.index(wanted)] if wanted else nodes.gpus[node].sum()) >= per_node
        and nodes.names[node] not in jobs.exc_nodes.value(row).split(",")
    }


def read(snapshot, result, sums, ours=()):
    """The pending jobs of a plan as the check sees them.

    `sums`: id → partition → multifactor's sum, of managed ones too. `ours`: ids whose site factor rltuned wrote; a job
    that has left the scope still has it until it is given back.
    """
    jobs = snapshot.jobs
    managed = {int(row): result.classes.names[of] for row, of in zip(result.rows, result.classes.of, strict=True)}
    found = []
    for row in jobs.pending.tolist():
        job = int(jobs.job_id[row])
        site = int(jobs.site_factor[row]) if row not in managed and job not in ours else 0
        if jobs.site_known[row] or row in managed:
            alone = {name: max(value + site, 1) for name, value in sums[job].items()}
        else:
            alone = dict.fromkeys(sums[job], int(jobs.priority[row]))
        places = {}
        for name in sums[job]:
            part, nodes = snapshot.partition_by_name[name], could_run(snapshot, row, name)
            places[name] = part.priority_tier, alone[name], nodes, nodes if part.up else set()
        turn = (float(jobs.submit_time[row]), job)
        tasks, reserved = max(int(jobs.array_tasks[row]), 1), bool(jobs.reservation.value(row))
        found.append(Job(job, turn, places, tasks, reserved, managed.get(row)))
    return found


def values_of(snapshot, sums, factors):
    """Priority in each partition with these site factors."""
    jobs = snapshot.jobs
    values = {}
    for row in jobs.pending.tolist():
        job = int(jobs.job_id[row])
        if jobs.site_known[row] or job in factors:
            values[job] = {name: max(value + factors.get(job, 0), 1) for name, value in sums[job].items()}
        else:
            values[job] = dict.fromkeys(sums[job], int(jobs.priority[row]))
    return values


# --- random queues ---


def queue(n, seed, span):
    """A snapshot without a trace of rltuned, and multifactor's sums by job and partition."""
    rng = np.random.default_rng(seed)
    plain = list(PARTITIONS)
    partition = rng.choice(
        [*plain[:4], *plain[:4], "urgent", "down", "p,k", "p,mixed", "p,k,mixed", "all,down", "all,urgent"], n
    ).tolist()
    ids = rng.permutation(np.arange(1, n + 1))
    sums = {}
    for row in range(n):
        value = int(rng.integers(1 if span > 3 else -1, span + 1))
        differs = rng.random() < 0.5
        sums[int(ids[row])] = {
            name: value + (int(rng.integers(0, span // 2 + 2)) if differs else 0) for name in partition[row].split(",")
        }
    base = np.array([max(sums[job].values()) for job in ids.tolist()])
    site = np.where(rng.random(n) < 0.1, rng.integers(-span, span + 1, n), 0)
    known = rng.random(n) < 0.9
    jobs = job_table(
        n,
        job_id=ids,
        submit_time=NOW - 1000.0 + rng.integers(0, n, n),
        eligible_time=np.where(rng.random(n) < 0.15, NOW - 20 * 86400.0, NOW - 1000.0),
        partition=partition,
        qos=rng.choice(["normal", "normal", "high"], n).tolist(),
        reservation=rng.choice(["", "", "", "", "", "exam"], n).tolist(),
        user=rng.choice(["alice", "alice", "alice", "bob"], n).tolist(),
        reason=rng.choice(["Priority", "Priority", "Priority", "Resources", "None", "AssocGrpGRES"], n).tolist(),
        gpu_type=rng.choice(["", "", "p100", "k80"], n).tolist(),
        exc_nodes=rng.choice(["", "", "", "k1"], n).tolist(),
        gpus=rng.integers(0, 3, n),
        array_tasks=rng.choice([0, 0, 0, 2, 3], n),
        time_limit=rng.choice([600.0, 3600.0, 7200.0, 86400.0], n),
        site_factor=site,
        site_known=known,
        base=base,
        base_least=[min(sums[job].values()) for job in ids.tolist()],
        priority=np.where(rng.random(n) < 0.05, 0, np.maximum(base + site, 1)),
    )
    return cluster(jobs), sums


queues = st.builds(queue, st.integers(2, 14), st.integers(0, 2**32 - 1), st.sampled_from([3, 12, 40, 100_000]))

configs = st.builds(
    lambda hysteresis, scope: settings_of(decide=DecideSection(hysteresis=hysteresis), scope=scope),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.sampled_from(
        [
            ScopeSection(exclude_users=("bob",)),
            ScopeSection(),
            ScopeSection(exclude_reservations=(), exclude_qos=("high",)),
        ]
    ),
)


@contextmanager
def bounded(requests, sets):
    """Fewer requests and node sets than this are known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "MOST_REQUESTS", requests)
        patch.setattr(pools, "MOST_SETS", sets)
        yield


bounds = st.sampled_from([(pools.MOST_REQUESTS, pools.MOST_SETS)] * 2 + [(64, 3), (64, 2), (5, 3), (2, 2)])


def written(changes, factors):
    """Site factors by id after these changes."""
    moves = {change.job_id: int(change.after) for change in changes if change.field is Field.SITE_FACTOR}
    return {**factors, **moves}


def no_prefix_inflates(snapshot, sums, result, factors, ours=()):
    """Every part of the writes, in their order; and the whole of them."""
    jobs = read(snapshot, result, sums, ours)
    factors = {job: factor for job, factor in factors.items() if job in sums}
    start = values_of(snapshot, sums, factors)
    in_turn = sorted(result.changes, key=lambda change: change.turn)
    for stop in range(len(in_turn) + 1):
        now = values_of(snapshot, sums, written(in_turn[:stop], factors))
        assert inflated(jobs, now, start) == []
    return jobs, now


@settings(max_examples=300, deadline=None)
@given(queues, configs, st.sampled_from(["sjf", "saf", "fifo"]), bounds)
def test_no_outside_job_is_passed_by_one_class_job_more_on_any_set_of_nodes_at_any_moment(case, config, rule, few):
    snapshot, sums = case
    with bounded(*few):
        result = plan(snapshot, by_name(rule), config)
        assert len(set(map(frozenset, map(np.flatnonzero, result.managed.outside.pools.nodes)))) <= few[1] + 1
    theirs = {
        int(job): int(factor)
        for job, factor, known in zip(
            snapshot.jobs.job_id, snapshot.jobs.site_factor, snapshot.jobs.site_known, strict=True
        )
        if known
    }
    jobs, now = no_prefix_inflates(snapshot, sums, result, theirs)
    assert inflated(jobs, now) == []
    jobs = snapshot.jobs
    ties = jobs.submit_time[result.rows] * 1000 + jobs.job_id[result.rows]
    for members in result.classes.members:
        alone = np.lexsort((ties[members], -result.base[members])).tolist()
        now = np.lexsort((ties[members], -result.target[members])).tolist()
        for at, member in enumerate(members):
            if NOW - jobs.eligible_time[result.rows[member]] > config.decide.age_bound:
                assert result.target[member] >= result.base[member]
                assert now.index(at) <= alone.index(at), "in the order that Slurm makes of the targets, ties included"


@settings(max_examples=200, deadline=None)
@given(queues, configs, bounds, st.data())
def test_nor_in_later_cycles_over_writes_that_were_cut_short_and_priorities_that_drift(case, config, few, data):
    snapshot, sums = case
    applied = {}
    for cycle in range(3):
        with bounded(*few):
            result = plan(snapshot, by_name("sjf" if cycle % 2 == 0 else "fifo"), config, AppliedChanges(applied))
        theirs = {
            int(job): int(factor)
            for job, factor, known in zip(
                snapshot.jobs.job_id, snapshot.jobs.site_factor, snapshot.jobs.site_known, strict=True
            )
            if known
        }
        no_prefix_inflates(snapshot, sums, result, theirs, applied)
        full = written(result.changes, theirs)
        managed = {int(snapshot.jobs.job_id[row]) for row in result.rows}
        if managed.issuperset(applied):  # what has left the scope is given back by others
            assert inflated(read(snapshot, result, sums), values_of(snapshot, sums, full)) == []
        in_turn = sorted(result.changes, key=lambda change: change.turn)
        sent = in_turn[: data.draw(st.integers(0, len(in_turn)))]
        factors = written(sent, theirs)
        submit = dict(zip(snapshot.jobs.job_id.tolist(), snapshot.jobs.submit_time.tolist(), strict=True))
        for change in sent:
            applied[change.job_id] = Applied(
                change.job_id,
                int(submit[change.job_id]),
                site_factor=factors.get(change.job_id, 0) if change.field is Field.SITE_FACTOR else 0,
            )
        snapshot, sums = _later(snapshot, sums, factors, data.draw(st.integers(0, 2**32 - 1)))


def _later(snapshot, sums, factors, seed):
    """A minute later: fair share has moved some jobs, some are gone."""
    rng = np.random.default_rng(seed)
    jobs = snapshot.jobs
    kept = np.flatnonzero(rng.random(len(jobs)) < 0.9)
    jobs = jobs.take(kept)
    ids = jobs.job_id.tolist()
    steps = (rng.integers(-3, 4, len(jobs)) * (rng.random(len(jobs)) < 0.4)).tolist()
    sums = {
        job: {name: value + step for name, value in sums[job].items()} for job, step in zip(ids, steps, strict=True)
    }
    base = np.array([max(sums[job].values()) for job in ids], dtype=np.int64)
    known = jobs.site_known
    site = np.array([factors.get(job, 0) for job in ids], dtype=np.int64) * known
    shown = np.where(jobs.priority == 0, 0, np.where(known, np.maximum(base + site, 1), jobs.priority))
    least = np.array([min(sums[job].values()) for job in ids], dtype=np.int64)
    jobs = replace(jobs, base=base, base_least=least, site_known=known, site_factor=site, priority=shown)
    return replace(snapshot, jobs=jobs, time=snapshot.time + 60.0), sums


# --- one case each ---

OPTED_OUT = ScopeSection(exclude_users=("bob",))
SJF = settings_of(scope=OPTED_OUT)


def line(*rows, **columns):
    """Jobs 1, 2, … in Slurm's own order: (priority, user, time limit, partition) each."""
    priority, user, limit, partition = zip(*rows, strict=True)
    return cluster(
        pending(
            len(rows),
            priority=priority,
            user=list(user),
            time_limit=limit,
            partition=list(partition),
            gpus=0,
            **columns,
        )
    )


def targets(result):
    return {
        int(result.snapshot.jobs.job_id[row]): int(value) for row, value in zip(result.rows, result.target, strict=True)
    }


def test_where_no_outside_job_stands_between_any_partition_exchanges_with_any():
    snapshot = line((5000, "alice", 9000.0, "p"), (1000, "alice", 60.0, "k"), (800, "bob", 600.0, "k"))
    assert targets(plan(snapshot, by_name("sjf"), SJF)) == {1: 1000, 2: 5000}


def test_an_outside_job_that_could_not_run_there_holds_nobody_back():
    snapshot = line((5000, "alice", 9000.0, "p"), (3000, "bob", 600.0, "p"), (1000, "alice", 60.0, "k"))
    assert targets(plan(snapshot, by_name("sjf"), SJF)) == {1: 1000, 3: 5000}


def test_what_is_held_back_frees_its_place_for_the_next():
    # 4 may not pass 2; the place of 1 is not lost, 3 and then 1 itself have it.
    snapshot = line(
        (5000, "alice", 9000.0, "p"),
        (3000, "bob", 600.0, "k"),
        (2000, "alice", 8000.0, "p"),
        (1000, "alice", 60.0, "k"),
    )
    found = targets(plan(snapshot, by_name("sjf"), SJF))
    assert found[3] == 5000
    assert found[4] == 2000
    assert found[1] == 1000


@pytest.mark.parametrize(
    "reason", ["AssocGrpGRES", "QOSMaxJobsPerUserLimit", "Licenses", "PartitionDown", "ReqNodeNotAvail"]
)
def test_nor_does_one_that_a_limit_keeps_from_starting(reason):
    rows = ((5000, "alice", 9000.0, "p"), (3000, "bob", 600.0, "p"), (1000, "alice", 60.0, "p"))
    result = plan(line(*rows, reason=[reason, "Priority", "Priority"]), by_name("sjf"), SJF)
    assert result.changes == ()
    assert [int(row) for row in result.scope.vetoed()[Veto.BLOCKED]] == [0]


def test_nor_one_whose_nodes_are_down_and_the_reason_for_that_is_no_reason():
    text = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    rows = ((5000, "alice", 9000.0, "p"), (3000, "bob", 600.0, "p"), (1000, "alice", 60.0, "p"))
    snapshot = line(*rows, reason=[text, "Priority", "Priority"])
    assert targets(plan(snapshot, by_name("sjf"), SJF)) == {1: 1000, 3: 5000}, "it waits for its turn like any other"
    down = replace(snapshot, nodes=replace(snapshot.nodes, usable=np.array([False, False, True, True])))
    both = plan(down, by_name("sjf"), SJF)
    assert both.changes == ()
    assert [int(row) for row in both.scope.vetoed()[Veto.BLOCKED]] == [0, 2]


def test_a_blocked_job_that_carries_our_value_gets_it_taken_back():
    rows = ((5000, "alice", 9000.0, "p"), (1000, "alice", 60.0, "p"))
    snapshot = line(*rows, reason=["Priority", "AssocGrpGRES"], site_factor=[-4000, 4000])
    submit = [int(value) for value in snapshot.jobs.submit_time]
    applied = AppliedChanges({1: Applied(1, submit[0], site_factor=-4000), 2: Applied(2, submit[1], site_factor=4000)})
    result = plan(snapshot, by_name("sjf"), SJF, applied)
    assert result.withdraw == (2,)
    assert [(change.job_id, change.after) for change in result.changes] == [(1, 0)], "its place was the other's"


def test_a_job_of_another_tier_is_no_concern():
    snapshot = line((5000, "alice", 9000.0, "p"), (3000, "bob", 600.0, "urgent"), (1000, "alice", 60.0, "k"))
    assert targets(plan(snapshot, by_name("sjf"), SJF)) == {1: 1000, 3: 5000}


def test_a_job_of_several_priorities_takes_a_place_by_its_highest_and_gives_what_it_has_everywhere():
    # 2 has 9000 where its partition weighs more and 4000 elsewhere. Bob's 5000 lies between.
    rows = ((9000, "alice", 9000.0, "p,k"), (5000, "bob", 600.0, "p"), (3000, "alice", 60.0, "p"))
    given = plan(line(*rows, base_least=[4000, 5000, 3000]), by_name("sjf"), SJF)
    assert targets(given)[3] <= 5000, "in p it had no more than 4000: there was nobody before bob"
    rows = ((9000, "alice", 9000.0, "p"), (5000, "bob", 600.0, "k"), (6000, "alice", 60.0, "p,k"))
    taken = plan(line(*rows, base_least=[9000, 5000, 4000]), by_name("sjf"), SJF)
    assert targets(taken)[3] <= 6000, "with 9000 it would have 7000 in k"


def test_a_real_base_below_the_shown_floor_is_not_taken_for_more():
    # 300 and a site factor of -900 show as 1; counted as 901, job 1 would give 901 to others, and get 600 too little
    # back.
    rows = ((1, "alice", 9000.0, "p"), (500, "bob", 600.0, "p"), (400, "alice", 60.0, "p"))
    snapshot = line(*rows, site_factor=[-900, 0, 0], base=[300, 500, 400])
    submit = [int(value) for value in snapshot.jobs.submit_time]
    result = plan(snapshot, by_name("sjf"), SJF, AppliedChanges({1: Applied(1, submit[0], site_factor=-900)}))
    assert result.base.tolist() == [300, 400]
    assert [(change.job_id, change.after) for change in result.changes] == [(1, 0)]


def test_no_more_jobs_get_resources_kept_for_them_where_an_outside_job_below_the_threshold_could_run():
    # From 5000 on Slurm keeps resources for a job that waits. 2 is ahead of bob anyway, but does not keep him from
    # starting.
    snapshot = line(
        (6000, "alice", 9000.0, "p"),
        (4000, "alice", 60.0, "k"),
        (3000, "alice", 8000.0, "p"),
        (1000, "bob", 600.0, "k"),
    )
    assert targets(plan(snapshot, by_name("sjf"), SJF))[2] == 6000
    kept = plan(replace(snapshot, scheduler=SchedulerParameters(bf_min_prio_reserve=5000)), by_name("sjf"), SJF)
    assert targets(kept)[2] < 5000
    assert any("job 4" in guard for guard in explain(record(kept), 2).guards)


def test_nor_does_that_threshold_matter_where_nobody_outside_is_below_it():
    rows = ((6000, "alice", 9000.0, "p"), (4000, "alice", 60.0, "k"), (1000, "alice", 600.0, "k"))
    snapshot = replace(line(*rows), scheduler=SchedulerParameters(bf_min_prio_reserve=5000))
    assert targets(plan(snapshot, by_name("sjf"), SJF))[2] == 6000


def test_many_changes_are_in_an_order_of_which_every_part_keeps_the_promise():
    # Far more raised jobs than the fewest lowered ones are looked for; the last of them come after all that are
    # lowered.
    n = 200
    user = ["bob" if k % 40 == 20 else "alice" for k in range(n)]
    partition = ["p" if k % 3 else "k" for k in range(n)]
    rows = [(10_000 - 10 * k, user[k], 600.0 * (n - k), partition[k]) for k in range(n)]
    snapshot = line(*rows)
    result = plan(snapshot, by_name("sjf"), SJF)
    raised = [change for change in result.changes if change.after > 0]
    assert len(raised) > EXACT_TURNS
    sums = {k + 1: {partition[k]: rows[k][0]} for k in range(n)}
    jobs = read(snapshot, result, sums)
    in_turn = sorted(result.changes, key=lambda change: change.turn)
    for stop in (*range(0, len(in_turn), 9), len(in_turn)):
        now = values_of(snapshot, sums, written(in_turn[:stop], {}))
        assert inflated(jobs, now) == []
    turn = {change.job_id: change.turn for change in in_turn}
    for change in raised:
        assert all(turn[job] < change.turn for job in change.rests_on)
    # Pair by pair: the second write already brings the first of the new order to the front.
    assert [(change.after < 0, change.job_id) for change in in_turn[1:8:2]] == [(False, 200 - k) for k in range(4)]
    assert all(change.after < 0 for change in in_turn[0:8:2])


# --- memory and time do not grow faster than the queue ---


def long_queue(n, *, partition, exclude=("",), nodes=200):
    """n jobs, every second of a user who opted out and whose partitions give it many different priorities."""
    names = [f"n{node}" for node in range(nodes)]
    partitions = tuple(
        Partition(name, np.arange(nodes, dtype=np.int32), True, 1, OverSubscribe.NO, 1, 7 * 86400.0) for name in "abc"
    )
    rng = np.random.default_rng(1)
    out = np.arange(n) % 2 == 0
    base = rng.integers(10_000, 50_000, n) + 50_000 * out
    jobs = pending(
        n,
        priority=base,
        base=base,
        base_least=np.where(out, 1000, base),
        partition=[partition if of else "a" for of in out],
        user=["bob" if of else "alice" for of in out],
        exc_nodes=[exclude[job % len(exclude)] for job in range(n)],
        gpus=0,
        time_limit=rng.integers(60, 80_000, n).astype(float),
    )
    return Snapshot(NOW, (24, 11), jobs, node_table(names, ["p100"], 4), partitions)


def peak(snapshot):
    """Bytes that a plan and its changes take at most."""
    tracemalloc.start()
    try:
        assert plan(snapshot, by_name("sjf"), SJF).changes
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_outside_jobs_of_many_priorities_take_no_more_memory_than_those_of_two():
    two, many = (peak(long_queue(6000, partition=partition)) for partition in ("a,b", "a,b,c"))
    assert many < 1.5 * two


def lists(number, nodes=400):
    return [f"n{k % nodes},n{(k // nodes + k + 1) % nodes}" for k in range(number)]


def test_node_lists_that_users_make_up_take_no_more_memory_the_more_there_are():
    def of(number):
        snapshot = long_queue(2500, partition="a", exclude=lists(number, 1500), nodes=1500)
        two = Category.of(["low", "low", "high", "high"] * 625)
        return replace(snapshot, jobs=replace(snapshot.jobs, qos=two))

    few, many = (peak(of(number)) for number in (pools.MOST_SETS, 2500))
    assert many < 6 * few


def test_one_user_with_many_node_lists_drives_nobody_else_out():
    n = 2 * pools.MOST_SETS
    names = [*(["mallory"] * n), "alice", "anna", "alice", "anna"]
    own = [*lists(n), "n7,n300", "n7,n300", "", ""]
    snapshot = long_queue(len(names), partition="a", exclude=own, nodes=400)
    snapshot = replace(snapshot, jobs=replace(snapshot.jobs, user=Category.of(names)))
    result = plan(snapshot, by_name("sjf"), settings_of())
    left = result.scope.vetoed()[Veto.NODE_SETS]
    assert len(left) == pools.MOST_SETS + 2, "two sets are others'"
    assert {snapshot.jobs.user.value(row) for row in left} == {"mallory"}
    job = int(snapshot.jobs.job_id[left[0]])
    assert explain(record(result), job).veto.startswith("node-sets: the queue asks for more than 256 different sets")
