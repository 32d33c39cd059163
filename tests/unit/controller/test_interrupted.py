"""Every prefix of every plan, interrupted, is repaired: by restore, and by simply going on."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.controller.model_slurm import Killed
from unit.controller.support import Bench

from rltuned.controller.write.journal import Journal

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Thousands of fsyncs are made; what they cost on a disk is not the question here."""

NICES = st.sampled_from([0, 0, 300, -20])


class Watched(Journal):
    """A journal that tells when something is about to be, and has been, put on disk."""

    __slots__ = ("on_commit",)

    def _commit(self, records):
        on_commit = getattr(self, "on_commit", lambda: None)
        on_commit()
        super()._commit(records)
        on_commit()


class Interrupted(Bench):
    """A bench whose daemon is killed at the n-th thing it does: a read, a journal write (before, after), an update."""

    def arm(self, at: int) -> None:
        count = 0

        def step(_number: int = 0) -> None:
            nonlocal count
            count += 1
            if count == at:
                raise Killed

        self.slurm.before_read = self.slurm.before_update = step
        self.journal.on_commit = step

    def disarm(self) -> None:
        self.slurm.before_read = self.slurm.before_update = lambda _: None
        self.journal.on_commit = lambda: None

    def restart_daemon(self) -> None:
        self.journal.close()  # as the kernel does for a killed process
        super().restart_daemon()
        self.journal.close()
        self.journal = watched(self.directory)

    def crash(self) -> None:
        """slurmctld is killed and started, and has calculated priorities."""
        self.slurm.crash_and_start()
        self.slurm.calculate()

    def killed(self, at: int, act) -> bool:
        self.arm(at)
        try:
            act()
        except Killed:
            self.disarm()
            self.restart_daemon()
            return True
        self.disarm()
        return False


OPEN: list[Journal] = []


def watched(directory: Path) -> Watched:
    OPEN.append(Watched.open(directory / "state", directory / "mirror"))
    return OPEN[-1]


@contextmanager
def bench_with(jobs):
    """For one example; the journals opened meanwhile are closed: there are thousands of examples."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield bench_of(directory, jobs)
    while OPEN:
        OPEN.pop().close()


@st.composite
def queues(draw):
    jobs = draw(st.lists(st.tuples(st.integers(500, 2000), NICES), min_size=2, max_size=5))
    ids = list(range(1, len(jobs) + 1))
    orders = draw(st.lists(st.permutations(ids), min_size=1, max_size=3))
    return jobs, orders


def bench_of(directory, jobs, **values):
    bench = Interrupted.make(Path(directory), **values)
    bench.journal.close()
    bench.journal = watched(bench.directory)
    for priority, nice in jobs:
        bench.slurm.submit(priority, nice=nice)
    bench.slurm.save_state()
    return bench


def assert_returned(bench, jobs):
    slurm = bench.slurm
    assert all(slurm.untouched(job) for job in slurm.jobs.values()), slurm.jobs
    assert [job.nice for job in slurm.jobs.values()] == [nice for _, nice in jobs]
    assert slurm.violations == []


def assert_in_force(bench, order):
    """The planned order, as far as different priorities allow one."""
    values = [bench.slurm.priority(bench.slurm.jobs[job]) for job in order]
    assert values == sorted(values, reverse=True)


@settings(max_examples=400, deadline=None)
@given(queues(), st.integers(1, 40), st.booleans())
def test_a_cycle_killed_at_any_point_is_undone_by_restore(queue, at, crashed_before):
    jobs, orders = queue
    with bench_with(jobs) as bench:
        for order in orders[:-1]:
            bench.cycle(order)
        if crashed_before:
            bench.killed(at // 2 + 1, lambda: bench.cycle(orders[0]))
        bench.killed(at, lambda: bench.cycle(orders[-1]))
        report = bench.restore()
        assert report.complete
        assert report.foreign == ()
        assert_returned(bench, jobs)
        assert bench.forgets_everything()


@settings(max_examples=400, deadline=None)
@given(queues(), st.integers(1, 40), st.integers(1, 40))
def test_a_cycle_killed_at_any_point_is_repaired_by_going_on_within_two_cycles(queue, first, second):
    jobs, orders = queue
    with bench_with(jobs) as bench:
        for order in orders:
            bench.killed(first, lambda order=order: bench.cycle(order))
        bench.killed(second, lambda: bench.cycle(orders[0]))
        bench.cycle(orders[-1])
        bench.cycle(orders[-1])
        assert not any(claim.foreign for claim in bench.journal.applied().by_job.values())
        assert_in_force(bench, orders[-1])
        assert all(bench.slurm.priority(job) >= bench.slurm.alone(job) for job in bench.slurm.jobs.values())
        bench.restore()
        assert_returned(bench, jobs)


@settings(max_examples=300, deadline=None)
@given(queues(), st.integers(1, 30), st.integers(1, 30), st.booleans())
def test_a_restore_killed_at_any_point_is_completed_by_the_next_or_by_going_on(queue, first, second, goes_on):
    jobs, orders = queue
    with bench_with(jobs) as bench:
        for order in orders:
            bench.cycle(order)
        bench.killed(first, bench.restore)
        bench.killed(second, bench.restore)
        if goes_on:
            bench.cycle(orders[0])
            bench.cycle(orders[0])
            assert not any(claim.foreign for claim in bench.journal.applied().by_job.values())
            assert_in_force(bench, orders[0])
        bench.restore()
        assert_returned(bench, jobs)
        assert bench.forgets_everything()


@settings(max_examples=300, deadline=None)
@given(queues(), st.integers(1, 10), st.sampled_from(["crash", "restart", "frozen", "lost"]))
def test_slurmctld_lost_at_any_update_is_repaired_within_two_cycles(queue, at, how):
    jobs, orders = queue
    with bench_with(jobs) as bench:
        bench.cycle(orders[0])
        bench.slurm.save_state()
        first = bench.slurm.updates

        def fall(number):
            if number == first + at:
                if how == "frozen":
                    bench.slurm.frozen = True
                else:
                    bench.slurm.up = False

        bench.slurm.before_update = fall
        bench.cycle(orders[-1])
        bench.slurm.before_update = lambda _: None
        {
            "crash": bench.slurm.crash_and_start,
            "restart": bench.slurm.restart,
            "frozen": bench.slurm.thaw,
            "lost": bench.slurm.lose_state,
        }[how]()
        if how == "lost":
            for priority, nice in jobs:
                bench.slurm.submit(priority, nice=nice)
        bench.slurm.calculate()
        bench.cycle(orders[-1])
        bench.cycle(orders[-1])
        foreign = [job for job, claim in bench.journal.applied().by_job.items() if claim.foreign]
        # A single job that an older state of slurmctld shows cannot be told from one that a person set back.
        assert len(foreign) <= (how == "crash")
        assert_in_force(bench, [job for job in orders[-1] if job not in foreign])
        bench.restore()
        assert_returned(bench, jobs)


def test_two_jobs_that_an_admin_set_back_are_the_admins_although_cycles_are_short(tmp_path):
    bench = bench_of(tmp_path, [(1000 - 100 * at, 0) for at in range(8)])
    bench.apply(bench.reorder([8, 7, 6, 5, 4, 3, 2, 1]))
    bench.clock.sleep(5.0)
    for job in (7, 8):
        bench.slurm.jobs[job].site_factor = 0
    assert set(bench.reconcile()) == {7, 8}


@pytest.mark.parametrize(
    "befalls",
    [
        *("two batches", "several writes to one job", "several writes to one job, and the daemon dies"),
        *("a former value on a requeued job", "another restore just now", "a cancelled job"),
    ],
)
def test_what_a_killed_slurmctld_brings_back_is_known_however_short_the_cycles_are(tmp_path, befalls):
    jobs = [(1000 - 100 * at, 0) for at in range({"two batches": 8, "another restore just now": 2}.get(befalls, 4))]
    bench = bench_of(tmp_path, jobs)
    bench.apply(bench.reorder(range(len(jobs), 0, -1)))
    bench.slurm.save_state()
    match befalls:
        case "two batches":  # the one before is not settled for good yet
            bench.clock.sleep(5.0)
            bench.apply(bench.reorder([8, 7, 6, 5, 4, 1, 3, 2]))
            bench.clock.sleep(1.0)
            bench.crash()
            assert not bench.reconcile()
        case "several writes to one job" | "several writes to one job, and the daemon dies":
            for order in ([3, 4, 2, 1], [2, 4, 3, 1], [1, 4, 2, 3]):
                bench.clock.sleep(1.5)  # all before slurmctld saves its state again
                bench.apply(bench.reorder(order))
            bench.crash()
            assert "dies" in befalls or not bench.reconcile()
        case "a former value on a requeued job":
            bench.clock.sleep(1.5)
            bench.apply(bench.reorder([3, 2, 1, 4]))
            bench.crash()
            bench.clock.sleep(1.5)
            bench.slurm.start(4)
            bench.slurm.requeue(4)
            bench.reconcile()
            assert 4 in bench.journal.entries
        case "another restore just now":
            bench.clock.sleep(300.0)
            for job in bench.slurm.jobs.values():
                job.site_factor = 0  # `restore JOBID` beside the daemon, which writes no journal
            bench.restore()
            bench.restore()
            bench.crash()
        case "a cancelled job":
            bench.slurm.leave(1)
            for _ in range(3):
                bench.clock.sleep(1.5)
                bench.reconcile()
            bench.crash()
            bench.reconcile()
    bench.restore()
    assert_returned(bench, jobs)
