"""``rltuned restore`` as a whole, beside dead, living and hung daemons."""

import pytest
from unit.controller.model_slurm import VirtualClock

from rltuned.cli.main import cli
from rltuned.controller.give_back.by_command import restore_queue
from rltuned.controller.health.clock import Moment, SystemClock
from rltuned.controller.health.heartbeat import Condition, beat
from rltuned.controller.health.lock import Lock
from rltuned.core.errors import JournalError, LockedError, SlurmUnavailableError


@pytest.fixture
def bench(bench):
    bench.cycle([4, 3, 2, 1])
    bench.journal.close()
    return bench


def run(bench, clock=None, **values):
    return restore_queue(
        bench.config(),
        clock=clock or bench.clock,
        connect_reader=lambda _section: bench.slurm.reader(),
        connect_writer=lambda _section: bench.slurm.writer(),
        **values,
    )


def untouched(bench):
    return [job.job_id for job in bench.slurm.jobs.values() if bench.slurm.untouched(job)]


def test_after_a_dead_daemon_everything_is_given_back(bench):
    assert run(bench).complete
    assert untouched(bench) == [1, 2, 3, 4]
    bench.clock.sleep(60.0)
    assert run(bench).restored == (), "looks again once slurmctld has surely saved its state, and forgets"
    reads = bench.slurm.reads
    assert run(bench).restored == ()
    assert bench.slurm.reads == reads, "with nothing in the journal Slurm is not even asked"


def test_without_slurm_it_says_how_many_jobs_keep_values_and_what_will_give_them_back(bench):
    bench.slurm.up = False
    with pytest.raises(SlurmUnavailableError, match=r"connect failure\)\n3 jobs may still carry.*deadman\.timer gives"):
        run(bench)
    bench.slurm.up = True
    run(bench)
    bench.clock.sleep(60.0)
    run(bench, job_ids=[1, 2, 3, 4])  # only that they are to be left alone is known of them now
    bench.slurm.up = False
    with pytest.raises(SlurmUnavailableError, match=r"connect failure\)$"):
        run(bench)


@pytest.mark.parametrize(
    ("purpose", "job_ids", "said"), [("run", [], "systemctl stop rltuned"), ("restore", [1], "rltuned restore")]
)
def test_beside_a_living_daemon_or_another_restore_it_refuses_and_says_what_to_do(bench, purpose, job_ids, said):
    with Lock.acquire(bench.directory / "state", purpose, 0.0), pytest.raises(LockedError, match=said):
        run(bench, job_ids=job_ids)
    assert bench.slurm.updates == 3


def test_beside_a_living_daemon_single_jobs_can_be_given_back(bench):
    with Lock.acquire(bench.directory / "state", "run", 0.0):
        assert run(bench, job_ids=[2]).restored == (2,)
    assert untouched(bench) == [1, 2]


@pytest.mark.parametrize("hung", [False, True])
def test_the_dead_man_restores_once_the_heart_has_stopped_even_if_a_hung_daemon_holds_the_lock(bench, hung):
    beat([bench.directory / "state"], Moment.of(bench.clock), 300.0)
    bench.clock.sleep(301.0)
    lock = Lock.acquire(bench.directory / "state", "run", 0.0) if hung else None
    assert run(bench, if_stale=300.0).complete
    assert untouched(bench) == [1, 2, 3, 4]
    if lock is not None:
        lock.release()


@pytest.mark.parametrize("befalls", ["nothing", "set", "suspend"])
def test_the_dead_man_leaves_a_living_daemon_alone_whatever_befalls_the_clock(bench, befalls):
    beat([bench.directory / "state"], Moment.of(bench.clock), 300.0)
    with Lock.acquire(bench.directory / "state", "run", 0.0):
        getattr(bench.clock, befalls, id)(3600.0)
        assert run(bench, if_stale=300.0) is None
        assert untouched(bench) == [1]
        bench.clock.sleep(301.0)
        assert run(bench, if_stale=300.0).complete


class Waiting(VirtualClock):
    """While somebody waits, the daemon beats, and says for how long it has been inactive."""

    def __init__(self, directory, inactive):
        super().__init__()
        self.directory, self.inactive = directory, inactive

    def sleep(self, seconds):
        super().sleep(seconds)
        self.inactive += seconds
        self.beat()

    def beat(self):
        beat([self.directory / "state"], Moment.of(self), 300.0, Condition(inactive=self.inactive))


@pytest.mark.parametrize(
    "inactive", ["for long", "not for long", "slurmctld is down", "slurmctld is just back", "it is just starting"]
)
def test_the_dead_man_leaves_the_queue_to_a_daemon_that_will_act_by_itself(bench, inactive):
    bench.slurm.clock = clock = Waiting(bench.directory, 1700.0 if inactive == "not for long" else 1801.0)
    if inactive == "it is just starting":
        clock.inactive = 0.0  # its first sign of life comes while the dead-man waits
    else:
        clock.beat()
    bench.slurm.up = inactive != "slurmctld is down"
    if inactive == "slurmctld is just back":
        clock.inactive = -200.0  # it acts while the dead-man waits for it
    helps = inactive == "for long"  # it lives, but neither acts nor gives anything back
    with Lock.acquire(bench.directory / "state", "run", 0.0):
        assert (run(bench, if_stale=300.0, clock=clock) is not None) is helps
    assert untouched(bench) == ([1, 2, 3, 4] if helps else [1])


def test_with_both_copies_unreadable_it_says_so_and_orphans_is_the_last_resort(bench):
    for root in ("state", "mirror"):
        path = bench.directory / root / "journal.jsonl"
        path.unlink()
        path.mkdir()
    with pytest.raises(JournalError, match="no copy of the journal can be read"):
        run(bench)
    assert run(bench, orphans=True).cleared_orphans == (2, 3, 4)
    assert untouched(bench) == [1, 2, 3, 4]


@pytest.mark.parametrize("killed", [True, False])
def test_the_dead_man_says_that_a_process_is_gone_although_its_last_sign_of_life_is_young(tmp_path, capsys, killed):
    state, path = tmp_path / "state", tmp_path / "config.toml"
    path.write_text(f'[state]\ndirectory = "{state}"\nmirror = ""\n')
    lock = Lock.acquire(state, "run", 0.0)
    beat([state], Moment.of(SystemClock()), 300.0)
    if killed:
        lock.release()
    cli.main(["restore", "--if-stale", "300", "--config", str(path)], standalone_mode=False)
    said = capsys.readouterr().out
    assert "nothing was done" in said
    assert ("is gone" in said, "is alive" in said) == (killed, not killed)
    lock.release()
