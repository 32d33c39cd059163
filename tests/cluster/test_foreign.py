"""People change jobs while rltuned decides about them: what they did stands, for good, and the record says so."""

import pytest
from cluster.daemon_support import Rltuned
from cluster.failure_support import BIN, arm, installed, left_to_slurm, mixed_jobs, next_cycles, running, terms, wrap
from cluster.support import NEWEST, WANTED, Cluster, wait_until

ACTS = f"""
if [[ -e {BIN}/act ]]; then
    mv {BIN}/act {BIN}/acted
    bash -e {BIN}/acted >{BIN}/said 2>&1 || touch {BIN}/failed
fi
"""

BEFORE_THE_LAST_LOOK = (
    "squeue",
    # The columns that are re-read before a write do not have the user; those of the plan's reading do.
    f"""if [[ $* == *PriorityLong* && $* != *UserName* ]]; then{ACTS}fi
exec /usr/bin/squeue "$@"
""",
)
"""Somebody acts when the plan has been made and the jobs have not been read again yet."""

AFTER_THE_LAST_LOOK = (
    "scontrol",
    f"""if [[ $# == 0 ]]; then
if [[ -e {BIN}/tried ]]; then{ACTS}fi
touch {BIN}/tried
fi
exec /usr/bin/scontrol "$@"
""",
)
"""Somebody acts when the jobs have been read again and the update is on its way; not the first one, of one job."""

BY_HAND = 12_345


def once_interrupted_by(rltuned: Rltuned, script: str) -> dict[int, str]:
    """One cycle in the middle of which people act; returns what became of each job's SiteFactor."""
    arm(rltuned, "act", f"PATH=/usr/bin:/bin\n{script}")
    once = rltuned.cycle()
    said = rltuned.cluster.sh(f"cat {BIN}/said; test ! -e {BIN}/failed", check=False)
    assert said.returncode == 0, said.stdout
    return {int(job): fields["SiteFactor"] for job, fields in once.record.data["outcomes"].items()}


@pytest.mark.parametrize(
    ("cluster", "wrapper"),
    [
        # What Slurm makes of the updates that come too late is each release's; who looks first sends none.
        pytest.param(WANTED[0], BEFORE_THE_LAST_LOOK, id=f"{WANTED[0]}-before"),
        *(pytest.param(release, AFTER_THE_LAST_LOOK, id=f"{release}-after") for release in WANTED),
    ],
    indirect=["cluster"],
)
def test_what_people_do_between_read_and_write_is_gone_held_or_foreign_and_stands_for_good(
    cluster: Cluster, wrapper: tuple[str, str]
):
    on_m40 = cluster.submit("dave", "-p", "urgent", "-w", "m40-1", "--exclusive", command="sleep 86400")
    others = ("-p", "urgent", "-N4", "-w", "k80-[1-2],p100-[1-2]", "--exclusive")
    cluster.wait_state(cluster.submit("dave", *others, command="sleep 86400"), "RUNNING")
    cluster.wait_state(on_m40, "RUNNING")
    # Equal jobs but for their limits, the longest first: all others go ahead of it. One may run on the M40, too.
    shapes = [("alice", f"--gres=gpu:{'' if at == 1 else 'p100:'}1", f"-t{100 - at}") for at in range(10)]
    jobs = cluster.submit_many(shapes)
    cluster.wait_sprio(jobs)
    passed, starts, prioritised, factored, held, held_by_user, cancelled, niced, let_go, moved = jobs

    # Who acts takes his time: the command that waits for him must not be taken for one that hangs.
    rltuned = installed(cluster, slurm={"timeout": 120.0})
    wrap(rltuned, *wrapper)
    clobbered = wrapper is AFTER_THE_LAST_LOOK  # a SiteFactor set in that instant cannot be told from none
    became = once_interrupted_by(
        rltuned,
        f"""
        scontrol update JobId={prioritised} Priority={BY_HAND}
        {"" if clobbered else f"scontrol update JobId={factored} SiteFactor=777"}
        scontrol hold {held}
        scontrol uhold {held_by_user}
        scancel {cancelled}
        scontrol update JobId={niced} Nice=200
        scontrol hold {let_go}
        scontrol release {let_go}
        scancel -s KILL {on_m40} || scancel {on_m40}
        for n in $(seq 1000); do
            [[ $(squeue -h -j {starts} -o %T) == RUNNING ]] && break
            sleep 0.1
        done
        [[ $(squeue -h -j {starts} -o %T) == RUNNING ]]
        """,
    )
    assert became == {
        starts: "gone",
        # sprio does not list it any more; one reading proves nothing, the next ones tell whose it is.
        prioritised: "failed" if clobbered else "throttled",
        factored: "applied" if clobbered else "foreign",
        held: "held",
        held_by_user: "held",
        cancelled: "gone",
        niced: "applied",
        let_go: "applied",
        moved: "applied",
    }
    assert passed not in became

    def what_they_did_stands() -> None:
        states, priorities, factors = cluster.states(), cluster.priorities(), cluster.site_factors()
        assert states[starts] == "RUNNING"
        assert cancelled not in states
        assert priorities[prioritised] == BY_HAND
        assert priorities[held] == priorities[held_by_user] == 0
        assert cluster.job(held)["Reason"] == "JobHeldAdmin"
        assert cluster.job(held_by_user)["Reason"] == "JobHeldUser"
        assert cluster.nice_values()[niced] == 200
        assert clobbered or factors[factored] == 777

    what_they_did_stands()
    with running(rltuned) as daemon:
        next_cycles(daemon, 2)
        what_they_did_stands()
        assert terms(cluster)[moved][0] > 0, "it goes on with the others"
        # Without anything of ours on it, it is a job with an explicit priority like any other.
        by_hand = "foreign" if clobbered else "no-priority"
        assert set(rltuned.record().vetoes.items()) >= {(prioritised, by_hand), (held, "held")}
    rltuned.restore()
    what_they_did_stands()
    # Nothing of ours comes to light when they let go.
    cluster.run(["scontrol", "release", f"{prioritised},{held},{held_by_user}"])
    left = [prioritised, held, held_by_user, niced, let_go, moved, passed, *([factored] if clobbered else [])]
    cluster.wait_sprio(left)
    assert left_to_slurm(cluster, left) == []


def test_an_admins_explicit_priority_of_1_stands_and_nothing_of_ours_lies_under_it(cluster: Cluster):
    """sprio shows it as it shows a job without any term: every one 0."""
    jobs = mixed_jobs(cluster, 12)
    rltuned = installed(cluster)
    rltuned.cycle()
    factors = cluster.site_factors()
    chosen, other = [job for job in jobs if factors[job] != 0][:2]
    cluster.update(chosen, "Priority=1")
    with running(rltuned) as daemon:
        next_cycles(daemon, 4)
        assert cluster.priorities()[chosen] == 1
        assert rltuned.record().vetoes[chosen] in {"foreign", "no-priority"}
        assert rltuned.record().data["stage"] == "active", "no alarm came of it"
        # A cycle right after the release may give it a new factor: between two of them, nothing of ours is there.
        daemon.program.kill("STOP")
        cluster.run(["scontrol", "release", str(chosen)])
        cluster.wait_sprio([chosen])
        factors = cluster.site_factors()
        daemon.program.kill("CONT")
        assert factors[chosen] == 0, "what was ours did not come into force with the release"
        assert factors[other] != 0
    assert rltuned.restore()["complete"]


def test_a_job_that_is_requeued_and_held_loses_what_is_ours_before_it_is_released(cluster: Cluster):
    jobs = mixed_jobs(cluster)
    rltuned = installed(cluster)
    rltuned.cycle()
    factors = cluster.site_factors()
    moved = {job for job in jobs if factors[job] != 0}
    cluster.sh("squeue -h -t R -o %A | xargs -r scancel")

    def started() -> list[int]:
        states = cluster.states()
        return [job for job in moved if states.get(job) == "RUNNING"]

    wait_until(lambda: len(started()) >= 2, "two jobs that were moved run")
    held, special = started()[:2]
    cluster.run(["scontrol", "requeuehold", str(held)])
    cluster.run(["scontrol", "requeuehold", "State=SpecialExit", str(special)])
    wait_until(
        lambda: (cluster.states().get(held), cluster.job(special)["JobState"]) == ("PENDING", "SPECIAL_EXIT"),
        "both wait and are held",
    )
    if cluster.release == NEWEST:  # the daemon goes on meanwhile, or it does not
        rltuned.cycle()
        rltuned.cycle()
    assert rltuned.restore()["complete"]
    cluster.run(["scontrol", "release", f"{held},{special}"])
    # A job that was requeued waits for two minutes more, and sprio lists it only then.
    for job in (held, special):
        cluster.update(job, "StartTime=now")
    cluster.wait_sprio([held, special])
    assert [cluster.site_factors()[job] for job in (held, special)] == [0, 0]
