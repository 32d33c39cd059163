"""One cycle raises some jobs and lowers none; those that are passed lend; and restore undoes all of it."""

from cluster.daemon_support import Record, Rltuned, recalculate, settle
from cluster.support import USERS, Cluster, wait_until

JOBS = 300
MANY = JOBS / 10
"""Raised jobs."""
SHORT = ("--gres=gpu:1", "-t1")
"""A job that is charged as little as any."""

# Slurm's own priorities stand still: no ageing, no recalculation, and the limiter lets all through in one cycle.
STILL: dict[str, str | None] = {
    "PriorityCalcPeriod": "60",
    "PriorityWeightAge": "0",
    "SlurmctldParameters": None,
}


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


def assert_lent(record: Record, users: dict[int, str]) -> None:
    """The first of other users that a raised job passes lend, and no job promises more than it has waited for."""
    may_lend, promised = record.column("may_lend"), dict.fromkeys(record.managed, 0.0)
    for job, raised in record.raises.items():
        for lender, gpus in raised.lenders.items():
            assert users[lender] != users[job]
            if lender in promised:
                promised[lender] += gpus * raised.seconds
    lend = {job: amount for job, amount in promised.items() if amount}
    assert lend, "some lend"
    assert all(amount <= may_lend[job] + 0.1 for job, amount in lend.items())


def assert_one_cycle_and_restore(
    cluster: Cluster, rltuned: Rltuned, before: dict[int, int], sizes: dict[int, int]
) -> None:
    """One cycle raises whom the plan wants, and changes nothing else; restore brings back what was."""
    cycle = rltuned.cycle()
    record, after, factors = cycle.record, cluster.priorities(), cluster.site_factors()
    assert set(cycle.outcomes) == {"applied"}
    assert cycle.outcomes["applied"] == len(record.changes) == len(record.raises) > MANY
    # Nobody stands below Slurm's own order, and only raised jobs carry anything.
    assert min(factors.values()) == 0
    assert {job for job, factor in factors.items() if factor} == set(record.raises)
    # Of a job of several partitions squeue shows the priority in the one that Slurm looked at last
    # (docs/slurm-measured.md).
    single = {job for job, names in cluster._jobs("%P", "PD").items() if "," not in names}
    assert len(single) > JOBS / 2
    assert set(record.vetoes) | set(record.managed) == set(before) == set(after)
    assert len(record.vetoes) > 10
    assert_priorities_but_for_sizes(cluster, single - set(record.raises), after, before, sizes)
    order, target = cluster.queue_order(), record.column("target")
    place = {job: at for at, job in enumerate(order)}
    for job, raised in record.raises.items():
        if job in single:
            assert after[job] == target[job] > before[job]
        if {job, raised.first} <= single and raised.first not in record.raises:
            assert place[job] < place[raised.first]
    assert_lent(record, cluster._jobs("%u", "PD"))
    left = rltuned.doctor()["leftovers"]
    assert (left["severity"], left["remedy"]) == ("error", "rltuned restore")

    report = rltuned.restore()
    assert report["complete"]
    assert {*report["restored"]} == set(record.raises)
    restored = cluster.priorities()
    assert set(restored) == set(before)
    assert_priorities_but_for_sizes(cluster, single, restored, before, sizes)
    assert set(cluster.site_factors().values()) == {0}
    left = rltuned.doctor()["leftovers"]
    assert left["severity"] == "ok"
    assert left["cause"].endswith("each priority is what Slurm alone computes")


def test_one_cycle_raises_some_of_300_jobs_of_mixed_shape_lowers_none_and_restore_gives_all_back(cluster: Cluster):
    # On a busy machine a pass of the default second at most does not come to the end of the queue.
    whole = cluster.scheduler_parameters(add=["bf_max_time=300"])
    with (
        cluster.conf({**STILL, **whole}),
        Rltuned(cluster, policy={"name": "saf"}, placement={"apply": "off"}) as rltuned,
    ):
        cluster.fill()
        cluster.workload(jobs=JOBS, seed=11)
        cluster.submit_many([(user, *SHORT) for user in USERS] * 5)
        nice = cluster.nice_values()
        assert len(nice) == JOBS + 5 * len(USERS)
        assert any(nice.values())
        before, sizes = settle(cluster), cluster.size_terms()

        def lends() -> bool:
            """Raised past the own user's jobs alone, there may be many before anyone has waited for long enough."""
            raises = rltuned.plan().raises
            return len(raises) > MANY and any(raised.lenders for raised in raises.values())

        wait_until(lends, "the jobs have waited for long enough to lend", pause=2.0)
        assert_one_cycle_and_restore(cluster, rltuned, before, sizes)
        assert cluster.nice_values() == nice
        # What a new calculation by Slurm gives is no different: nothing was left that it would bring out.
        single = {job for job, names in cluster._jobs("%P", "PD").items() if "," not in names}
        again = recalculate(cluster)
        assert_priorities_but_for_sizes(cluster, single, again, before, sizes)


def test_a_raised_job_passes_those_that_can_lend_and_nobody_for_whom_more_was_decided(cluster: Cluster):
    fair = {"PriorityWeightFairshare": "0"}
    with cluster.conf({**STILL, **fair}), Rltuned(cluster, policy={"name": "sjf"}) as rltuned:
        cluster.fill()
        large = ("--gres=gpu:p100:4", "-t600")
        # There is room for a raised job between two of different priorities only: the first lender has more CPUs.
        decided, *lenders = cluster.submit_many(
            [("bob", *large, "--qos=high"), ("carol", *large, "-c8"), ("dave", *large)]
        )
        flood = cluster.submit_many([("alice", "--gres=gpu:p100:1", "-t1")] * 8)
        cluster.wait_sprio([decided, *lenders, *flood])
        assert rltuned.plan().raises == {}, "nobody has waited for long enough"

        def can_lend() -> dict[int, int]:
            """To how many of the flood each lender can lend: a minute of one GPU each, out of its wait times four."""
            may_lend = rltuned.plan().column("may_lend")
            return {job: int(may_lend[job] // 60) for job in lenders}

        wait_until(lambda: min(can_lend().values()) >= 1, "each can lend to one")
        record = rltuned.cycle().record
        expected, waits = [decided], list(flood)
        for lender in lenders:
            count = int(record.column("may_lend")[lender] // 60)
            assert abs(record.column("may_lend")[lender] - 4 * record.column("wait")[lender]) <= 4
            expected += [*waits[:count], lender]
            del waits[:count]
        assert len(waits) < len(flood), "some go ahead"
        assert cluster.queue_order() == [*expected, *waits]
        factors = cluster.site_factors()
        assert factors[decided] == factors[lenders[0]] == factors[lenders[1]] == 0
        assert all(factors[job] > 0 for job in set(flood) - set(waits))
        first = next(iter(record.raises.values()))
        assert (first.first, first.seconds, first.lenders) == (lenders[0], 60.0, {lenders[0]: 1.0})
        answers = rltuned.explain(lenders[0], flood[0])
        assert flood[0] in answers[lenders[0]]["lends_for"]
        assert answers[flood[0]]["verdict"] == "goes ahead"
        assert rltuned.restore()["complete"]
