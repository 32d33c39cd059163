"""Whatever breaks while rltuned steers a real cluster, it neither crashes nor leaves what nobody can take back."""

import contextlib
from collections.abc import Callable, Collection, Iterator

import pytest
from cluster.daemon_support import MIRROR, SLURM_USER, STATE, Daemon, Rltuned, named
from cluster.failure_support import (
    BIN,
    arm,
    installed,
    left_to_slurm,
    mixed_jobs,
    more_jobs,
    next_cycles,
    order_problems,
    running,
    terms,
    wait_cycle,
    wrap,
)
from cluster.support import Cluster, CommandFailedError, on_one_release, on_the_oldest, wait_until

JOBS = 40
SHORTEST = ("--gres=gpu:1", "-t1")
"""A job that belongs in front of all others, so that there is something to write."""

KILLS_AFTER = f"""
[[ $# -gt 0 ]] && exec /usr/bin/scontrol "$@"
if [[ -e {BIN}/kill ]]; then
    k=$(<{BIN}/kill)
    rm {BIN}/kill
    mapfile -t -n "$k" lines
    [[ $k -gt 0 ]] && printf '%s\\n' "${{lines[@]}}" | /usr/bin/scontrol
    kill -KILL $PPID $$
fi
exec /usr/bin/scontrol
"""
"""scontrol that, once, passes the first k lines on and then kills the daemon, whose child it is, and itself."""

FREEZES_HALF_WAY = f"""
[[ $# -gt 0 ]] && exec /usr/bin/scontrol "$@"
if [[ -e {BIN}/freeze ]]; then
    k=$(<{BIN}/freeze)
    rm {BIN}/freeze
    mapfile -t -n "$k" lines
    printf '%s\\n' "${{lines[@]}}" | /usr/bin/scontrol
    pkill -STOP -x 'slurmctld(-wlm)?'
fi
exec /usr/bin/scontrol
"""
"""scontrol that, once, passes the first k lines on, freezes slurmctld, and then sends the rest into the void."""


CUTS_LIMITS = """
function slurm_job_submit(job, partitions, uid)
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
    job.time_limit = 1
    return slurm.SUCCESS
end
return slurm.SUCCESS
"""
"""A job_submit plugin that gives every job that is updated a minute."""


def kill_after(rltuned: Rltuned, writes: int) -> None:
    """One cycle whose daemon dies by SIGKILL after so many writes."""
    arm(rltuned, "kill", writes)
    rltuned.run("run", "--once", check=False)
    gone = rltuned.cluster.sh(f"test ! -e {BIN}/kill", check=False)
    assert gone.returncode == 0, "the daemon came to its writes"
    assert any(factor != 0 for factor, _ in terms(rltuned.cluster).values())


def recovers(rltuned: Rltuned, jobs: Collection[int]) -> bool:
    """Whether the queue is in the plan's order within two cycles.

    One is enough unless slurmctld recalculates the fair share, which it does every minute, just then.
    """
    for _ in range(2):
        rltuned.cycle()
        if not order_problems(rltuned, jobs):
            return True
    return False


@on_one_release
def test_after_kill_9_at_the_kth_write_the_next_cycle_goes_on_and_restore_brings_every_priority_back(cluster: Cluster):
    jobs = mixed_jobs(cluster, JOBS)
    rltuned = installed(cluster)
    wrap(rltuned, "scontrol", KILLS_AFTER)
    # At each of them, and at each other step, it is killed on the model of Slurm.
    for writes in (1, JOBS // 2, JOBS):
        kill_after(rltuned, writes)
        assert recovers(rltuned, jobs), f"two cycles after {writes} writes: {order_problems(rltuned, jobs)}"
        rltuned.restore()
        assert left_to_slurm(cluster, jobs) == [], f"restore after {writes} writes and a cycle"

        kill_after(rltuned, writes)
        rltuned.restore()
        assert left_to_slurm(cluster, jobs) == [], f"restore right after {writes} writes"
    assert rltuned.doctor()["leftovers"]["severity"] == "ok"


@on_one_release
def test_a_plugin_that_changes_what_is_updated_gets_one_job_and_the_rest_is_left_to_slurm(cluster: Cluster):
    def limits() -> dict[str, str]:
        return dict(
            line.split() for line in cluster.run(["squeue", "-h", "-t", "PD", "-o", "%i %l"]).stdout.splitlines()
        )

    jobs = mixed_jobs(cluster, JOBS)
    rltuned = installed(cluster)
    before = limits()
    cluster.write_file("/etc/slurm/job_submit.lua", CUTS_LIMITS)
    with cluster.conf(JobSubmitPlugins="lua"):
        cluster.wait_sprio(jobs)
        assert "lua" in rltuned.doctor()["job_submit plugins"]["cause"]
        first = rltuned.cycle()
        assert first.outcomes["altered"] == 1
        assert set(first.outcomes) == {"altered", "throttled"}
        rltuned.cycle()
        changed = [job for job, limit in limits().items() if limit != before[job]]
        # Each daemon's first write is of one job: these cycles are two processes.
        assert 1 <= len(changed) <= 2
        rltuned.restore()
        assert [job for job, (factor, _) in terms(cluster).items() if factor != 0] == []


def kill_after_it_saved(cluster: Cluster) -> None:
    """SIGKILL for slurmctld once what it took so far is on its disk.

    What rltuned makes of writes that are lost with it is shown on the model of Slurm, where the loss can be aimed.
    """
    cluster.slurmctld.wait_saved()
    cluster.slurmctld.stop("KILL")


def outages(cluster: Cluster, host: str) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Ways to lose slurmctld, and the way back of each."""
    controller = cluster.slurmctld
    return {
        "killed": (lambda: kill_after_it_saved(cluster), controller.start),
        "stopped": (controller.stop, controller.start),
        "frozen": (controller.freeze, controller.thaw),
        "cut off, packets vanish": (lambda: cluster.block_network(host), cluster.unblock_network),
        "cut off, connections refused": (lambda: cluster.block_network(host, refuse=True), cluster.unblock_network),
    }


def recovers_within_two_cycles(rltuned: Rltuned, daemon: Daemon, jobs: Collection[int], after: str) -> None:
    """At the latest the second cycle that begins after now leaves the whole queue in the plan's order."""
    for _ in range(2):
        report = next_cycles(daemon, 1)[0]
        problems = order_problems(rltuned, jobs)
        if report["outcome"] == "done" and problems == []:
            return
    pytest.fail(f"{after}: {report['sentence']} {problems}")


# How each release says that it cannot be reached is recorded (tests/recorded, failures.json).
@on_the_oldest
def test_slurmctld_stopped_killed_frozen_or_out_of_reach_the_daemon_lives_on_and_recovers_within_two_cycles(
    cluster: Cluster,
):
    jobs = mixed_jobs(cluster, 20)
    rltuned = installed(cluster, service="login", slurm={"timeout": 5.0})
    with running(rltuned) as daemon:
        for seed, (name, (lose, find)) in enumerate(outages(cluster, "login").items()):
            lose()
            failed = wait_cycle(daemon, lambda cycle: cycle["outcome"] == "failed", f"fails: {name}")
            assert failed["changes"] == {}
            find()
            wait_until(
                lambda: cluster.sh("timeout 2 scontrol ping", service="login", check=False).returncode == 0,
                "slurmctld answers the daemon's host",
            )
            jobs += more_jobs(cluster, 1, seed)
            recovers_within_two_cycles(rltuned, daemon, jobs, name)
        assert named(daemon.program.output(), "cycle.defect") == []
    rltuned.restore()
    assert left_to_slurm(cluster, jobs) == []


@on_one_release
def test_slurmctld_frozen_or_restarted_in_the_middle_of_a_write_leaves_a_queue_that_two_cycles_put_right(
    cluster: Cluster,
):
    jobs = mixed_jobs(cluster, 20)
    rltuned = installed(cluster, slurm={"timeout": 5.0})
    wrap(rltuned, "scontrol", FREEZES_HALF_WAY)
    arm(rltuned, "freeze", 7)
    with running(rltuned) as daemon:
        assert daemon.cycles()[0]["changes"].get("applied", 0) == 0, "what could not be read back is not claimed"
        cluster.slurmctld.thaw()
        recovers_within_two_cycles(rltuned, daemon, jobs, "frozen after 7 of the writes")

        cluster.slurmctld.wait_saved()  # what comes now may be lost
        arm(rltuned, "freeze", 7)
        with contextlib.suppress(CommandFailedError):  # a cycle under way may freeze slurmctld before it has the job
            jobs += more_jobs(cluster, 1, 1)
        wait_cycle(daemon, lambda cycle: cycle["outcome"] == "failed", "fails")
        cluster.slurmctld.stop("KILL")
        cluster.slurmctld.start()
        jobs = [job for job in jobs if job in cluster.priorities()]  # the last one may have been lost as well
        recovers_within_two_cycles(rltuned, daemon, jobs, "frozen after 7 of the writes, then killed")
    rltuned.restore()
    assert left_to_slurm(cluster, jobs) == []


def start_over(cluster: Cluster, generation: int) -> list[int]:
    """slurmctld loses its state, ids begin at 1 again; other jobs get the same ids, and wait. Returns those."""
    cluster.slurmctld.restart(wipe_state=True)
    shapes = [("alice", "--hold", "--gres=gpu:p100:1", f"-t{100 + at * 7 * generation % 11}") for at in range(1, 11)]
    jobs = cluster.submit_many(shapes)
    # The job that takes the nodes gets an id that none had before: a node may still run the last one's.
    cluster.cancel(*cluster.submit_many([("dave", "--hold")] * generation))
    cluster.fill()
    cluster.run(["scontrol", "release", ",".join(map(str, jobs))])
    cluster.wait_sprio(jobs)
    return jobs


@on_the_oldest
def test_after_a_restart_without_state_nothing_of_the_old_journal_touches_new_jobs_of_the_same_ids(cluster: Cluster):
    rltuned = installed(cluster)
    old = start_over(cluster, 1)
    rltuned.cycle()
    assert any(factor != 0 for factor, _ in terms(cluster).values())

    assert start_over(cluster, 2) == old
    cluster.sh(f"cp {STATE}/journal.jsonl /tmp/journal-old")
    cluster.reset_rpc_counts()
    assert rltuned.restore()["restored"] == []
    assert cluster.sdiag_rpc_counts().job_updates == 0
    assert left_to_slurm(cluster, old) == []

    cluster.sh(f"cp /tmp/journal-old {STATE}/journal.jsonl")
    with running(rltuned) as daemon:
        recovers_within_two_cycles(rltuned, daemon, old, "lost before the daemon began")
        assert start_over(cluster, 3) == old
        recovers_within_two_cycles(rltuned, daemon, old, "lost under the running daemon")
        assert "foreign changes" not in rltuned.doctor()
    rltuned.restore()
    assert left_to_slurm(cluster, old) == []


FEW_IDS = {"FirstJobId": "1000", "MaxJobId": "1050", "MinJobAge": "2"}
"""The last id is 1049."""


def come_round_to(cluster: Cluster, job: int) -> None:
    """The next job gets this id: all before it are used once more, by jobs that are cancelled at once."""
    used = cluster.states()
    before = max((other for other in range(1000, job) if other not in used), default=1049)
    cluster.sh(
        f"""cd /tmp; for n in $(seq 200); do
            job=$(sbatch --parsable --uid=carol --hold -t1 -o /dev/null --wrap=true) && scancel $job
            [ "$job" = {before} ] && exit
        done; exit 1"""
    )


@on_one_release
def test_where_job_ids_come_round_a_new_job_has_nothing_of_the_one_that_had_its_id(cluster: Cluster):
    with cluster.conf(FEW_IDS):
        old = mixed_jobs(cluster, 12)
        rltuned = installed(cluster, estimates={"source": "history", "refresh": 1.0})
        with running(rltuned) as daemon:
            recovers_within_two_cycles(rltuned, daemon, old, "the first jobs")
            *raised, stays = (job for job, (factor, _) in terms(cluster).items() if factor != 0)
            gone = [job for job in old if job != stays]
            daemon.program.kill("STOP")
            cluster.cancel(*gone)
            forgotten = " && ".join(f"! scontrol show job {job}" for job in gone)
            wait_until(lambda: cluster.sh(forgotten, check=False).returncode == 0, "slurmctld forgets them")
            come_round_to(cluster, gone[0])
            # Of a held job nothing tells whether our value is on it.
            shapes = [
                ("bob", *(["--hold"] if at % 2 else []), "--gres=gpu:1", f"-t{300 - 20 * at}")
                for at in range(len(gone))
            ]
            new = cluster.submit_many(shapes)
            assert set(raised) & set(new[::2])
            assert set(raised) & set(new[1::2])
            daemon.program.kill("CONT")
            next_cycles(daemon, 1)
            cluster.run(["scontrol", "release", ",".join(map(str, new[1::2]))])
            cluster.wait_sprio(new)
            recovers_within_two_cycles(rltuned, daemon, [stays, *new], "other jobs have their ids")
            assert not daemon.log("job.foreign")
            assert not daemon.log("jobs.orphaned")
            assert all(
                job["verdict"] in {"goes ahead", "left where Slurm has it"} for job in rltuned.explain(*new).values()
            )
        rltuned.restore()
        assert left_to_slurm(cluster, [stays, *new]) == []


FULL = ("/dev", "/dev/shm")
"""Two file systems of every container, in memory and of 64 MiB each, that can be filled without any privilege."""


@contextlib.contextmanager
def two_small_disks(cluster: Cluster, user: str) -> Iterator[tuple[str, str]]:
    """A directory on each of them; what fills them is taken away at the end."""
    directories = tuple(f"{disk}/rltuned" for disk in FULL)
    try:
        for directory in directories:
            cluster.sh(f"rm -rf {directory}; install -d -o {user} -m 700 {directory}")
        yield directories[0], directories[1]
    finally:
        for disk, directory in zip(FULL, directories, strict=True):
            cluster.sh(f"rm -rf {directory} {disk}/filler")


def fill_up(cluster: Cluster, disk: str) -> None:
    cluster.sh(
        f"dd if=/dev/zero of={disk}/filler bs=1M 2>/dev/null; "
        f"dd if=/dev/zero of={disk}/filler bs=512 oflag=append conv=notrunc 2>/dev/null; true"
    )
    left = cluster.sh(f"df --output=avail {disk} | tail -1").stdout
    assert int(left) == 0


def much_to_write(cluster: Cluster, daemon: Daemon, seed: int) -> list[int]:
    """Jobs for which the next cycle writes more to its journal than fits into what is left of the file's last block."""
    daemon.program.kill("STOP")
    jobs = [*more_jobs(cluster, JOBS, seed), cluster.submit("alice", *SHORTEST)]
    cluster.wait_sprio(jobs)
    daemon.program.kill("CONT")
    return jobs


def free(cluster: Cluster, disk: str) -> None:
    cluster.sh(f"rm {disk}/filler")


@on_one_release
def test_one_full_disk_raises_an_alarm_and_two_stop_all_writes_until_there_is_space_again(cluster: Cluster):
    jobs = mixed_jobs(cluster, 20)
    with two_small_disks(cluster, SLURM_USER) as (directory, mirror):
        rltuned = installed(cluster, state={"directory": directory, "mirror": mirror})
        with running(rltuned) as daemon:
            fill_up(cluster, FULL[1])
            jobs += much_to_write(cluster, daemon, seed=2)
            recovers_within_two_cycles(rltuned, daemon, jobs, "one disk is full")
            (alarm,) = named(daemon.program.output(), "journal.degraded")
            assert mirror in alarm["sentence"]
            assert "No space left" in alarm["sentence"]

            fill_up(cluster, FULL[0])
            before = terms(cluster)
            cluster.reset_rpc_counts()
            jobs += much_to_write(cluster, daemon, seed=3)
            stopped = wait_cycle(daemon, lambda cycle: cycle["outcome"] == "failed", "fails")
            assert "no copy of the journal can be written" in stopped["sentence"]
            assert "No space left" in stopped["sentence"]
            next_cycles(daemon, 1)
            assert cluster.sdiag_rpc_counts().job_updates == 0
            after = terms(cluster)
            assert {job: after[job][0] for job in before} == {job: factor for job, (factor, _) in before.items()}

            free(cluster, FULL[0])
            free(cluster, FULL[1])
            recovers_within_two_cycles(rltuned, daemon, jobs, "there is space again")
            copies = [cluster.read_file(f"{place}/journal.jsonl") for place in (directory, mirror)]
            assert all(f'"job":{jobs[-1]},' in copy for copy in copies), "both copies are whole again"
        rltuned.restore()
        assert left_to_slurm(cluster, jobs) == []


@on_one_release
def test_a_truncated_journal_is_named_and_what_it_does_not_know_is_not_touched_but_can_be_taken_back(
    cluster: Cluster,
):
    jobs = mixed_jobs(cluster, 20)
    rltuned = installed(cluster)
    rltuned.cycle()
    factors = {job: factor for job, (factor, _) in terms(cluster).items() if factor != 0}
    size = len(cluster.read_file(f"{STATE}/journal.jsonl"))
    cluster.sh(f"cp {STATE}/journal.jsonl /tmp/journal-whole")
    for keep in (0, 150, size // 4):
        for place in (STATE, MIRROR):
            cluster.sh(f"head -c {keep} /tmp/journal-whole >{place}/journal.jsonl")
        lost = {job: factor for job, factor in factors.items() if f'"job":{job},' not in lines_of(cluster, keep)}
        assert lost, "the journal is cut where it matters"
        found = rltuned.doctor()
        assert ("damaged line" in found["journal"]["cause"]) == (keep > 0), keep
        assert f"{len(lost)} pending jobs" in found["orphans"]["cause"], keep
        assert "restore --orphans" in found["orphans"]["remedy"]
        assert ("leftovers" in found and found["leftovers"]["severity"] == "error") == (len(lost) < len(factors))

        once = rltuned.cycle()
        assert bool(named(once.log, "journal.damaged")) == (keep > 0)
        assert named(once.log, "jobs.orphaned"), keep
        now = terms(cluster)
        assert {job: now[job][0] for job in lost} == lost, f"touched what it does not know, {keep} bytes of journal"
    rltuned.restore("--orphans")
    assert left_to_slurm(cluster, jobs) == []
    assert "orphans" not in rltuned.doctor()


def lines_of(cluster: Cluster, keep: int) -> str:
    """The whole lines among the first bytes of the journal."""
    return cluster.read_file("/tmp/journal-whole")[:keep].rpartition("\n")[0]
