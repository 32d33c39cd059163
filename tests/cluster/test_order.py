"""300 jobs of every shape: one cycle puts each class into the plan's order, and restore undoes all of it."""

from itertools import pairwise

from cluster.daemon_support import Record, Rltuned, recalculate, settle
from cluster.support import Cluster

JOBS = 300

# Slurm's own priorities stand still: no ageing, no recalculation, and the limiter lets all through in one cycle.
STILL: dict[str, str | None] = {
    "PriorityCalcPeriod": "60",
    "PriorityWeightAge": "0",
    "SlurmctldParameters": None,
}


def assert_order_of_the_plan(order: list[int], record: Record) -> None:
    """Every class is in the plan's order, whatever stands between its jobs."""
    place = {job: at for at, job in enumerate(order)}
    for name, planned in record.classes.items():
        assert sorted(planned, key=place.__getitem__) == planned, name


def assert_same_priorities(before: list[int], after: list[int], *, held_back: bool) -> None:
    """The same multiset, but that a value may be lowered as far as it takes to stay behind its predecessor.

    Where an outside job holds some of the class back (`held_back`), values below their places stay free.
    """
    before, after = sorted(before, reverse=True), sorted(after, reverse=True)
    assert len(before) == len(after)
    if held_back:
        assert all(mine <= was for mine, was in zip(after, before, strict=True))
        return
    assert after[0] == before[0]
    for (ahead, mine), was in zip(pairwise(after), before[1:], strict=True):
        assert mine == was or (mine < was and ahead - 1 <= mine <= ahead), (mine, was, ahead)


def assert_priorities_but_for_sizes(
    cluster: Cluster, jobs: set[int], now: dict[int, int], before: dict[int, int], sizes: dict[int, int]
) -> None:
    """What it was; where Slurm has taken another size for a job meanwhile, as much more as that makes (±1: sums are cut
    off)."""
    resized = cluster.size_terms()
    grown = {job: resized.get(job, 0) - sizes.get(job, 0) for job in jobs}
    assert sum(map(bool, grown.values())) < 5
    assert {job: now[job] for job in jobs if not grown[job]} == {job: before[job] for job in jobs if not grown[job]}
    assert all(abs(now[job] - before[job] - grown[job]) <= 1 for job in jobs)


def assert_one_cycle_and_restore(
    cluster: Cluster, rltuned: Rltuned, before: dict[int, int], sizes: dict[int, int]
) -> None:
    """One cycle brings the plan's order and nothing else; restore brings back what was."""
    cycle = rltuned.cycle()
    record, after = cycle.record, cluster.priorities()
    assert set(cycle.outcomes) == {"applied"}
    assert cycle.outcomes["applied"] == len(record.changes) > JOBS / 3
    assert len(record.classes) >= 4, "tiers and QOS"
    # Every managed class is in the plan's order, with its own priorities.
    assert_order_of_the_plan(cluster.queue_order(), record)
    behind = record.column("held_behind")
    for jobs in record.classes.values():
        assert_same_priorities(
            [before[job] for job in jobs], [after[job] for job in jobs], held_back=any(behind[job] for job in jobs)
        )
    # The rest is where it was.
    assert len(record.vetoes) > 10
    assert set(record.vetoes) | set(record.managed) == set(before) == set(after)
    # Of a job of several partitions squeue shows the priority in the one that Slurm looked at last (docs/testbed.md).
    single = {job for job, names in cluster._jobs("%P", "PD").items() if "," not in names}
    assert len(single) > JOBS / 2
    assert [after[job] for job in record.vetoes if job in single] == [
        before[job] for job in record.vetoes if job in single
    ]
    left = rltuned.doctor()["leftovers"]
    assert (left["severity"], left["remedy"]) == ("error", "rltuned restore")

    report = rltuned.restore()
    assert report["complete"]
    assert {*report["restored"]} == {job for job, *_ in record.changes}
    restored = cluster.priorities()
    assert set(restored) == set(before)
    assert_priorities_but_for_sizes(cluster, single, restored, before, sizes)
    assert not any(cluster.site_factors().values())
    assert set(cluster.site_factors().values()) == {0}
    left = rltuned.doctor()["leftovers"]
    assert left["severity"] == "ok"
    assert left["cause"].endswith("each priority is what Slurm alone computes")


def test_one_cycle_puts_300_jobs_of_mixed_shape_into_the_plans_order_and_restore_gives_all_back(cluster: Cluster):
    # On a busy machine a pass of the default second at most does not come to the end of the queue.
    whole = cluster.scheduler_parameters(add=["bf_max_time=300"])
    with cluster.conf({**STILL, **whole}), Rltuned(cluster, placement={"apply": "off"}) as rltuned:
        cluster.fill()
        cluster.workload(jobs=JOBS, seed=11)
        nice = cluster.nice_values()
        assert len(nice) == JOBS
        assert any(nice.values())
        before, sizes = settle(cluster), cluster.size_terms()
        assert_one_cycle_and_restore(cluster, rltuned, before, sizes)
        assert cluster.nice_values() == nice
        # What a new calculation by Slurm gives is no different: nothing was left that it would bring out.
        single = {job for job, names in cluster._jobs("%P", "PD").items() if "," not in names}
        again = recalculate(cluster)
        assert_priorities_but_for_sizes(cluster, single, again, before, sizes)
