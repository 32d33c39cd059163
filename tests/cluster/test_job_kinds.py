"""Each line of docs/jobs.md, on real jobs: what rltuned does with them and what `explain` says."""

from collections.abc import Iterator

import pytest
from cluster.daemon_support import Rltuned
from cluster.support import Cluster, on_one_release, wait_until

YEAR = 365 * 86400
SHORTEST_FIRST = {"policy": {"name": "sjf"}, "placement": {"apply": "off"}}


@pytest.fixture
def rltuned(cluster: Cluster) -> Iterator[Rltuned]:
    """On nodes that are all taken."""
    with Rltuned(cluster, **SHORTEST_FIRST) as installed:
        cluster.fill()
        yield installed


def ordinary(cluster: Cluster, *minutes: int) -> list[int]:
    """Plain jobs of two GPUs and these time limits, all of one user: Slurm's order is the given one, before all jobs of
    one GPU."""
    return cluster.submit_many([("alice", "--gres=gpu:2", f"-t{limit}") for limit in minutes])


def task_priorities(cluster: Cluster, array: int) -> dict[str, int]:
    rows = cluster.sh(f"squeue -h -r -t PD -j {array} -o '%i %Q'").stdout.split("\n")[:-1]
    return {task: int(priority) for task, priority in (row.split() for row in rows)}


def records_of(cluster: Cluster, array: int) -> int:
    """In how many records slurmctld keeps an array."""
    return len(cluster.run(["scontrol", "-o", "show", "job", str(array)]).stdout.splitlines())


def test_an_array_is_one_unit_with_one_update_its_record_is_not_split_and_running_jobs_are_left_alone(
    cluster: Cluster, rltuned: Rltuned
):
    long = ordinary(cluster, 500, 400)
    array = cluster.submit("alice", "--gres=gpu:1", "--array=1-20", "-t5")
    filler = next(job for job, state in cluster.states().items() if state == "RUNNING")
    cluster.wait_sprio([*long, array])
    priority = cluster.job(filler)["Priority"]
    before = task_priorities(cluster, array)
    assert len(before) == 20
    assert records_of(cluster, array) == 1
    cluster.reset_rpc_counts()

    cycle = rltuned.cycle()
    assert [of for job, of, *_ in cycle.record.changes if job == array] == ["SiteFactor"]
    assert cycle.outcomes == {"applied": len(cycle.record.changes)}
    assert cluster.sdiag_rpc_counts().job_updates == len(cycle.record.changes)
    after = task_priorities(cluster, array)
    assert after.keys() == before.keys()
    assert len(set(after.values())) == 1
    # Not against what it was: Slurm may have calculated alice's fair share anew meanwhile, and rounds each sum for
    # itself.
    priorities = cluster.priorities()
    assert priorities[array] >= max(priorities[job] for job in long)
    assert records_of(cluster, array) == 1
    # A running job is not pending, and never touched.
    assert filler not in {*cycle.record.managed, *cycle.record.vetoes}
    assert cluster.job(filler)["Priority"] == priority
    answers = rltuned.explain(array, filler)
    assert (answers[array]["verdict"], answers[array]["rank"]) == ("goes ahead", 1)
    assert answers[filler]["verdict"] == "not pending"

    assert rltuned.restore()["complete"]
    assert records_of(cluster, array) == 1
    assert cluster.site_factors()[array] == 0


def test_the_rest_of_a_partly_started_array_is_raised_as_one_and_its_running_tasks_are_left_alone(cluster: Cluster):
    with Rltuned(cluster, **SHORTEST_FIRST) as rltuned:
        array = cluster.submit("alice", "--exclusive", "--array=1-6", "--gres=gpu:p100:4", "-t5")
        running = f"squeue -h -r -t R -j {array} -o '%i %A %N'"
        wait_until(lambda: len(cluster.sh(running).stdout.splitlines()) == 2, "two tasks run")
        long = cluster.submit("alice", "-N2", "--gres=gpu:p100:4", "-t500")
        cluster.wait_sprio([long])
        before, records = task_priorities(cluster, array), records_of(cluster, array)
        started = cluster.sh(running).stdout
        assert len(before) == 4

        cycle = rltuned.cycle()
        assert [(job, of) for job, of, *_ in cycle.record.changes] == [(array, "SiteFactor")]
        assert cycle.outcomes == {"applied": 1}
        after = task_priorities(cluster, array)
        assert after.keys() == before.keys()
        assert len(set(after.values())) == 1

        def stands() -> bool:
            return (now := cluster.priorities())[array] > now[long]

        # Backfill may have undone it: the daemon then writes it again.
        wait_until(lambda: stands() or (rltuned.cycle() and stands()), "it stands before the long one", pause=1.0)
        assert records_of(cluster, array) == records
        assert cluster.sh(running).stdout == started
        assert {int(line.split()[1]) for line in started.splitlines()}.isdisjoint(cycle.record.managed)


def test_what_priority_cannot_start_or_a_person_decided_is_left_to_slurm_and_explain_says_why(
    cluster: Cluster, rltuned: Rltuned
):
    first, *others = ordinary(cluster, 500, 400, 300)
    reservation = ["ReservationName=kept", "StartTime=now", "Duration=60", "Users=alice"]
    reservation += ["Nodes=k80-1", "Flags=IGNORE_JOBS"]
    cluster.run(["scontrol", "create", "reservation", *reservation])
    cluster.run(["scontrol", "create", "PartitionName=shrinking", "Nodes=k80-1,k80-2"])
    left = {
        "dependency": [cluster.submit("alice", f"--dependency=afterany:{first}", "-t1")],
        "not-eligible": [cluster.submit("alice", "--begin=now+1hour", "-t1")],
        "held": [cluster.submit("alice", "--hold", "-t1")],
        "several-tiers": [cluster.submit("alice", "-p", "gpu,urgent", "-t1")],
        "reservation": [cluster.submit("alice", "--reservation=kept", "-t1")],
        "no-priority": [cluster.submit("alice", "-t1")],
        "negative-nice": [cluster.submit("alice", "-t1")],
        "deadline": [cluster.submit("alice", "--deadline=now+3hours", "-t1")],
        "foreign": [cluster.submit("alice", "-t1")],
        # The feature is gone, the partition has no such type, the partition has too few nodes.
        "never-runs": [
            cluster.submit("alice", "-C", "m40", "-t1"),
            cluster.submit("alice", "--gres=gpu:p100:1", "-t1"),
            cluster.submit("alice", "-p", "shrinking", "-N2", "-t1"),
        ],
    }
    script = "cd /tmp; sbatch --parsable --uid=alice -o /dev/null -t1 -n1 : -n1 --wrap='sleep 60'"
    het = int(cluster.sh(script).stdout)
    left["heterogeneous"] = [het, het + 1]
    cluster.update(left["no-priority"][0], "Priority=777")
    cluster.update(left["negative-nice"][0], "Nice=-20")
    cluster.update(left["foreign"][0], "SiteFactor=33")
    gone, elsewhere, _ = left["never-runs"]
    cluster.run(["scontrol", "update", "NodeName=m40-1", "ActiveFeatures=gpu", "AvailableFeatures=gpu"])
    try:
        cluster.update(elsewhere, "Partition=k80")
        cluster.run(["scontrol", "update", "PartitionName=shrinking", "Nodes=k80-1"])
        cluster.wait_sprio(
            [first, *others, gone, elsewhere, left["foreign"][0], *left["negative-nice"], *left["deadline"]]
        )
        factors = cluster.site_factors()

        cycle = rltuned.cycle()
        expected = {job: reason for reason, jobs in left.items() for job in jobs}
        assert cycle.record.vetoes == expected
        assert cycle.outcomes == {"applied": 2}, "two of the ordinary ones go ahead of the third"
        now = cluster.site_factors()
        assert {job: now.get(job) for job in expected} == {job: factors.get(job) for job in expected}
        assert cluster.priorities()[left["no-priority"][0]] == 777
        assert cluster.priorities()[left["held"][0]] == 0
        answers = rltuned.explain(*expected, first)
        assert {job: answers[job]["veto"].split(":")[0] for job in expected} == expected
        assert {answers[job]["verdict"] for job in expected} == {"not managed"}
        assert answers[first]["verdict"] == "left where Slurm has it"
        shown = rltuned.run("explain", str(gone)).stdout
        assert "no node of its partitions can ever satisfy the request" in " ".join(shown.split())
        assert rltuned.restore()["complete"]
        assert cluster.site_factors()[left["foreign"][0]] == 33, "it is somebody else's"
    finally:
        features = "ActiveFeatures=m40,gpu", "AvailableFeatures=m40,gpu"
        cluster.run(["scontrol", "update", "NodeName=m40-1", *features])
        cluster.cancel_all()
        cluster.run(["scontrol", "delete", "PartitionName=shrinking"])


def test_a_job_of_several_partitions_of_one_tier_is_ranked_and_each_partitions_order_is_right(
    cluster: Cluster, rltuned: Rltuned
):
    only_gpu = ordinary(cluster, 500, 300)
    only_k80 = cluster.submit_many([("alice", "-p", "k80", "--gres=gpu:2", f"-t{n}") for n in (600, 400)])
    both = cluster.submit("alice", "-p", "gpu,k80", "--gres=gpu:1", "-t200")
    jobs = [*only_gpu, both, *only_k80]
    # Raised jobs stand a few points apart: what they age meanwhile must not matter.
    with cluster.conf(PriorityWeightAge="0"):
        cluster.wait_sprio(jobs)
        cycle = rltuned.cycle()
        rows = [row.split() for row in cluster.run(["sprio", "-h", "-o", "%i %r %Y"]).stdout.splitlines()]
    assert set(cycle.outcomes) == {"applied"}
    assert cycle.record.order == [both, only_gpu[1], only_k80[1], only_gpu[0], only_k80[0]]
    # sprio tells the priority that a job has in each of its partitions.
    order = {
        name: [job for _, job in sorted((-int(value), int(job)) for job, of, value in rows if of == name)]
        for name in ("gpu", "k80")
    }
    assert order["k80"] == [both, *only_k80[::-1]]
    # It takes its place by the highest of its priorities, so in the other partition it passes nobody by more.
    assert [job for job in order["gpu"] if job != both] == only_gpu[::-1]
    answer = rltuned.explain(both)[both]
    assert (answer["verdict"], answer["rank"], answer["veto"]) == ("goes ahead", 1, "")


@on_one_release  # as each release prints them, they are among the recorded jobs
def test_jobs_without_gpus_without_a_limit_or_wanting_a_node_alone_are_ranked_with_the_others(
    cluster: Cluster, rltuned: Rltuned
):
    rltuned.configure(placement={"apply": "oversubscribe"})
    plain = cluster.submit("alice", "--gres=gpu:2", "-t600")
    no_gpu = cluster.submit("alice", "-t60")
    endless = cluster.submit("alice", "-p", "endless", "--gres=gpu:1", "-tUNLIMITED")
    asked = cluster.submit_many(
        [("alice", how, "--gres=gpu:1", "-t30") for how in ("--exclusive", "--exclusive=user", "--oversubscribe")]
    )
    jobs = [plain, no_gpu, endless, *asked]
    cluster.wait_sprio(jobs)
    columns = "squeue -h -t PD -o '%A %h' | sort"
    shown = cluster.sh(columns).stdout

    cycle = rltuned.cycle()
    assert cycle.record.vetoes == {}
    # The three are equal: they stand as Slurm has them, which changes when a scheduler looks at them (below).
    ranked = cycle.record.order
    assert (sorted(ranked[:3]), ranked[3:]) == (asked, [no_gpu, plain, endless])
    assert cycle.record.changes
    assert {of for _, of, *_ in cycle.record.changes} == {"SiteFactor"}
    assert set(cycle.outcomes) == {"applied"}
    assert cluster.sh(columns).stdout == shown
    answers = rltuned.explain(*jobs)
    assert answers[endless]["run_time_estimate"] == YEAR
    assert answers[endless]["verdict"] == "left where Slurm has it"
    assert (answers[plain]["gpus"], answers[no_gpu]["gpus"]) == (2, 0)
    # Once a scheduler has looked at a job that wants a node alone, all its CPUs count: it may be the first by Slurm.
    verdicts = {answers[job]["verdict"] for job in asked}
    assert "goes ahead" in verdicts
    assert verdicts <= {"goes ahead", "left where Slurm has it"}

    # By size, not having a GPU counts as having one: an hour of it comes before three quarters of an hour of two.
    cluster.update(plain, "TimeLimit=45")
    cluster.update(no_gpu, "TimeLimit=61")
    rltuned.configure(policy={"name": "saf"})
    assert no_gpu in cycle.record.raises
    assert rltuned.cycle().record.vetoes == {no_gpu: "changed"}, "it takes its own place back first"
    ranked = rltuned.cycle().record.order
    # One that wants a node alone counts with all its GPUs, as soon as Slurm tells that it does.
    alone, *equal = asked
    others = [job for job in ranked if job != alone]
    assert (sorted(others[:2]), others[2:]) == (equal, [no_gpu, plain, endless])


def test_what_a_requeued_task_of_an_array_carries_is_given_back_although_the_task_with_the_arrays_number_has_ended(
    cluster: Cluster,
):
    with Rltuned(cluster, **SHORTEST_FIRST) as rltuned:
        filler = cluster.fill()
        long = ordinary(cluster, 500, 400)
        array = cluster.submit("alice", "--gres=gpu:1", "--requeue", "--array=1-3", "-t5")
        cluster.wait_sprio([*long, array])
        rltuned.cycle()
        factor = cluster.site_factors()[array]
        assert factor > 0
        cluster.cancel(filler)
        own = f"squeue -h -r -j {array} -o '%A %K %t'"

        def tasks() -> dict[int, tuple[int, str]]:
            rows = [row.split() for row in cluster.sh(own, check=False).stdout.splitlines()]
            return {int(task): (int(number), state) for number, task, state in rows}

        wait_until(lambda: [state for _, state in tasks().values()] == ["R"] * 3, "all tasks run")
        ended = next(task for task, (number, _) in tasks().items() if number == array)
        again, sibling = (task for task in (1, 2, 3) if task != ended)
        cluster.drain(*cluster.nodes)
        cluster.run(["scancel", f"{array}_{ended}"])
        wait_until(lambda: tasks().keys() == {again, sibling}, "the task with the array's number has ended")
        assert array in rltuned.restore()["running"]

        number = tasks()[again][0]
        cluster.run(["scontrol", "requeue", str(number)])
        wait_until(lambda: tasks()[again] == (number, "PD"), "a task is requeued under the number that it has")
        cluster.update(number, "StartTime=now")
        cluster.wait_sprio([number])
        assert cluster.site_factors()[number] == factor
        report = rltuned.restore()
        assert (report["complete"], array in report["restored"]) == (True, True)
        assert cluster.site_factors()[number] == 0
        assert tasks()[sibling][1] == "R"
