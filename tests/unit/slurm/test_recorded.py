"""What real clusters of three releases answered (tests/recorded/, made by docker-slurm-testbed/record.py)."""

import json
import math

import numpy as np
import pytest
from unit.slurm.standin import RECORDED, StandIn, labels

from rltuned.core.changes import Change, Field, JobState, Outcome, OverSubscribe, SiteFactor
from rltuned.core.errors import SlurmParseError, SlurmUnavailableError
from rltuned.core.pools import job_pools
from rltuned.slurm import controller, listings
from rltuned.slurm.cli import CliReader
from rltuned.slurm.commands import EXCLUSIVE_SINCE, REGISTRY
from rltuned.slurm.facts import facts_from
from rltuned.slurm.process import Answer, failure
from rltuned.slurm.writer import ScontrolWriter

RELEASES = ("22.05", "24.11", "26.05")
HOUR = 3600.0
DAY = 86400.0
SUSPENDED = "running without GPU"


@pytest.fixture(scope="module", params=RELEASES)
def release(request):
    return request.param


@pytest.fixture
def blind(release):
    """Whether this release shows a default job and one set to NO alike."""
    return controller.version(f"{release}.0")[1] >= EXCLUSIVE_SINCE


@pytest.fixture
def reader(slurm, release):
    slurm.load(RECORDED / release)
    return CliReader(slurm.runner())


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory, release):
    """Read once per release; it is a frozen value."""
    slurm = StandIn(tmp_path_factory.mktemp("recorded") / "slurm")
    slurm.load(RECORDED / release)
    return CliReader(slurm.runner()).snapshot(1795245000.0)


@pytest.fixture
def jobs(snapshot):
    return snapshot.jobs


@pytest.fixture
def row(jobs, release):
    """Row of a job by its label."""
    ids = labels(release)
    return lambda label: jobs.row_of[ids[label]]


def failures(release):
    return {one["name"]: one for one in json.loads((RECORDED / release / "failures.json").read_text())}


def test_every_job_that_was_submitted_is_there_once_and_no_other(jobs, release):
    expected = {number for label, number in labels(release).items() if label != "will be cancelled"}
    tasks = set(jobs.job_id.tolist()) - expected
    assert expected <= set(jobs.job_id.tolist())
    # Beside them: two running tasks of the array and the second component of the het job.
    assert len(tasks) == 3
    assert len(jobs) == len(jobs.row_of)


@pytest.mark.parametrize(
    ("label", "gpus", "per_node", "kind"),
    [
        ("plain", 0, 0, ""),
        ("typed", 4, 4, "p100"),
        ("untyped", 2, 2, ""),
        ("one GPU without a number", 1, 1, ""),
        ("gpus", 3, 0, ""),
        ("gpus typed", 4, 0, "k80"),
        ("gpus per node", 4, 2, "p100"),
        ("gpus per task", 3, 0, ""),
        ("gpus per task typed", 2, 0, "k80"),
        ("gpus per socket", 2, 0, ""),
        ("cpus and memory per GPU", 2, 0, ""),
        ("two nodes typed", 8, 4, "p100"),
        ("node range", 2, 0, ""),
        ("partitions of two tiers", 1, 1, "k80"),
        ("depends on an array", 1, 1, ""),
        ("het job", 1, 1, "p100"),
        ("running typed", 2, 2, "p100"),
        ("running on two nodes", 4, 2, "k80"),
        ("running without GPU", 0, 0, ""),
    ],
)
def test_gpus(jobs, row, label, gpus, per_node, kind):
    at = row(label)
    assert (jobs.gpus[at], jobs.gpus_per_node[at], jobs.gpu_type.value(at)) == (gpus, per_node, kind)


@pytest.mark.parametrize(
    ("label", "cpus", "mem"),
    [
        ("plain", 1, 1000.0),
        ("tasks and threads", 12, 12000.0),
        ("memory per CPU", 4, 12288.0),
        ("all memory", 1, math.nan),
        ("two nodes typed", 2, 2000.0),
        ("running on two nodes", 56, 56000.0),
    ],
)
def test_cpus_and_memory(jobs, row, label, cpus, mem):
    at = row(label)
    assert jobs.cpus[at] == cpus
    assert jobs.mem[at] == pytest.approx(mem, nan_ok=True)
    assert jobs.mem[row("cpus and memory per GPU")] == 2 * 8192.0


@pytest.mark.parametrize(
    ("label", "seconds"),
    [
        ("plain", HOUR),
        ("unlimited", math.inf),
        ("running without limit", math.inf),
        ("half a minute", 60.0),
        ("days", 7 * DAY),
        ("running on two nodes", DAY),
        ("deadline", 600.0),
    ],
)
def test_time_limits(jobs, row, label, seconds):
    assert jobs.time_limit[row(label)] == seconds


@pytest.mark.parametrize(
    ("label", "tasks", "limit"),
    [
        ("array", 20, 0),
        ("array limited", 20, 3),
        ("array with steps", 15, 0),
        ("array of odd tasks", 600, 0),
        ("array of one", 1, 0),
        ("depends task by task", 20, 0),
        ("running array, two at a time", 18, 2),
        ("plain", 0, 0),
        ("het job", 0, 0),
    ],
)
def test_waiting_tasks_of_arrays_are_counted_however_long_the_expression(jobs, row, label, tasks, limit):
    assert (jobs.array_tasks[row(label)], jobs.array_limit[row(label)]) == (tasks, limit)


def test_running_tasks_of_an_array_are_rows_of_their_own(snapshot, row, release):
    jobs = snapshot.jobs
    extra = sorted(set(jobs.job_id.tolist()) - set(labels(release).values()))[:2]
    for number in extra:
        at = jobs.row_of[number]
        assert (jobs.state[at], jobs.array_tasks[at]) == (JobState.RUNNING, 0)
        assert [snapshot.nodes.names[node] for node in jobs.nodes_of(at)] == ["p100-1"]


def test_running_jobs_know_their_nodes_and_their_end(snapshot, row):
    jobs, nodes = snapshot.jobs, snapshot.nodes
    two = row("running on two nodes")
    assert sorted(nodes.names[node] for node in jobs.nodes_of(two)) == ["k80-1", "k80-2"]
    assert jobs.end_time[two] - jobs.start_time[two] == DAY
    assert jobs.end_time[row("running without limit")] == math.inf
    assert jobs.state[row(SUSPENDED)] == JobState.RUNNING
    assert jobs.running.size == 8 + 1  # the array's first entry waits, two of its tasks run


def test_the_allocations_of_running_jobs_are_the_nodes(snapshot):
    nodes = snapshot.nodes
    use = {name: row for row, name in enumerate(nodes.names)}
    kinds = {kind: column for column, kind in enumerate(nodes.gpu_types)}
    assert nodes.gpu_types == ("k80", "m40", "p100")
    assert nodes.gpus.sum(axis=0).tolist() == [4, 1, 8]
    assert nodes.gpus_alloc[use["p100-1"], kinds["p100"]] == 2
    assert nodes.gpus_alloc[use["p100-2"], kinds["p100"]] == 4
    assert nodes.gpus_alloc[use["k80-1"], kinds["k80"]] == 2
    assert nodes.cpus_alloc[use["p100-2"]] == 56
    assert nodes.usable.all()


def test_what_keeps_a_job_waiting(jobs, row):
    for label in ("depends on a job", "depends on an array", "depends task by task", "dependency can never be met"):
        assert jobs.dependent[row(label)]
        assert math.isnan(jobs.eligible_time[row(label)])
    assert not jobs.dependent[row("plain")]
    begins = row("begins later")
    assert jobs.eligible_time[begins] - jobs.submit_time[begins] == pytest.approx(HOUR, abs=5)
    for label in ("held by its user", "held by an administrator", "made impossible"):
        assert jobs.held[row(label)]
    assert not jobs.held[row("plain")]


def test_priorities_nice_and_site_factors(jobs, row):
    plain, site, negative = row("plain"), row("site factor"), row("negative site factor")
    assert jobs.priority[site] - jobs.priority[plain] == 1500 - 10
    assert jobs.priority[negative] - jobs.priority[plain] == -700 - 10
    assert (jobs.site_factor[site], jobs.site_factor[negative]) == (1500, -700)
    assert jobs.site_known[[site, negative, plain]].all()
    assert (jobs.nice[site], jobs.nice[row("nice")], jobs.nice[row("negative nice")]) == (10, 321, -50)
    decided = [dict(term.split("=") for term in jobs.decided.value(at).split()).get("nice") for at in (plain, site)]
    assert decided == [None, "10"]
    assert "nice=321" in jobs.decided.value(row("nice"))
    assert "nice=-50" in jobs.decided.value(row("negative nice"))
    assert jobs.site_factor[row("two partitions")] == 33
    assert jobs.site_known[row("array")]
    assert jobs.site_known[row("het job")]


def test_the_base_of_each_job_is_slurms_priority_without_the_site_factor(jobs, row):
    known = jobs.site_known & [len(name.split(",")) == 1 for name in jobs.partition.texts()]
    assert known.sum() > 50
    assert (jobs.base[known] == jobs.priority[known] - jobs.site_factor[known]).all()
    assert (jobs.base_least[known] == jobs.base[known]).all()


def test_a_job_of_several_partitions_has_the_sums_of_all_of_them(jobs, row):
    # TRES are shares of the partition's: one GPU of k80's four is more than one of gpu's thirteen.
    at = row("partitions of two tiers")
    assert (jobs.base[at], jobs.base_least[at]) == (10104, 9930)
    assert jobs.priority[at] == 9930, "squeue shows that of one of them"


def test_the_terms_that_sprio_shows_add_up_to_the_priority_but_for_rounding(release):
    # What a base below Slurm's floor rests on: each of up to nine terms is rounded, the sum is cut.
    folder = RECORDED / release
    for path in (folder / "site-factors.txt", *folder.glob("priorities-*.txt")):
        checked = 0
        for shown, site, tres, nice, *terms in _sprio_rows(path.read_text()):
            if not tres:
                continue  # explicit priority
            total = sum(terms) - nice + sum(int(part.rpartition("=")[2]) for part in tres.split(","))
            assert -4 <= shown - site - total <= 1
            checked += 1
        assert checked > 30


def _sprio_rows(text):
    """Shown priority, site factor, TRES, nice, and the other terms of each row of a recorded answer of sprio."""
    if "## sprio" not in text:
        for line in text.splitlines():
            _, site, shown, tres, *terms = line.split("\x1f")[:-1]
            yield int(shown), int(site), tres, *(int(term) for term in terms)
        return
    for line in text.split("## sprio\n")[1].split("## ")[0].splitlines():
        shown, age, _, share, _, size, _, part, _, qos, _, nice, site, tres, _ = line.split("|")[-15:]
        yield int(shown), int(site), tres, *(int(term) for term in (nice, age, share, size, part, qos))


def test_a_job_with_an_explicit_priority_is_not_under_multifactor(jobs, row):
    at = row("explicit priority")
    assert (jobs.priority[at], jobs.site_known[at]) == (4242, False)


def test_jobs_that_multifactor_has_not_counted_are_not_known(jobs, row):
    for label in ("held by its user", "held by an administrator", "depends on a job", "begins later", "running typed"):
        assert not jobs.site_known[row(label)]


def test_oversubscribe_and_exclusivity(jobs, row, blind):
    default = OverSubscribe.UNKNOWN if blind else OverSubscribe.OK
    assert jobs.oversubscribe.value(row("plain")) == default
    assert jobs.oversubscribe.value(row("default in a shared partition")) == OverSubscribe.OK
    assert jobs.oversubscribe.value(row("oversubscribe")) == OverSubscribe.YES
    assert jobs.oversubscribe.value(row("set to YES")) == OverSubscribe.YES
    assert jobs.oversubscribe.value(row("set to NO")) == (OverSubscribe.UNKNOWN if blind else OverSubscribe.NO)
    for label in ("exclusive", "exclusive in a shared partition", "exclusive partition", "exclusive user"):
        assert jobs.exclusive[row(label)]
    for label in ("plain", "oversubscribe", "set to YES", "default in a shared partition", "two partitions"):
        assert not jobs.exclusive[row(label)]
    assert jobs.oversubscribe.value(row("exclusive user")) == OverSubscribe.USER
    assert jobs.oversubscribe.value(row("exclusive")) == OverSubscribe.NO


def test_where_a_job_may_run(jobs, row):
    assert jobs.exc_nodes.value(row("avoids nodes")) in {"m40-1,p100-[1-2]", "p100-[1-2],m40-1"}
    assert jobs.req_nodes.value(row("wants nodes")) == "p100-[1-2]"
    assert jobs.features.value(row("constraint or")) == "p100|k80"
    assert jobs.features.value(row("constraint and")) == "p100&gpu"
    assert jobs.features.value(row("constraint one of")) == "[p100|k80]"
    assert jobs.reservation.value(row("in a reservation")) == "exam"
    assert sorted(jobs.partition.value(row("partitions of two tiers")).split(",")) == ["gpu", "k80", "urgent"]
    assert jobs.tmp[row("local disk")] == 51200.0
    assert jobs.nodes[row("two nodes typed")] == 2
    assert jobs.qos.value(row("high QOS")) == "high"


def test_het_components_know_their_leader(jobs, row, release):
    leader = labels(release)["het job"]
    assert [int(number) for number in jobs.job_id[jobs.het_job_id == leader]] == [leader, leader + 1]


def test_partitions_keep_their_names_whatever_is_in_them(release):
    text = (RECORDED / release / "partitions-hostile-names.txt").read_text()
    found = {line.partition.name: line for line in listings.partitions(text)[0]}
    assert {"we ird;x", "tab\tx", "a|b", "dollar$(id)", "esc\x1b[31m", "ümlaut", "p%c", "gpu"} <= found.keys()
    assert found["we ird;x"].nodes == ["m40-1"]
    # A name that looks like keys is a name.
    forged = text.replace("PartitionName=we ird;x ", "PartitionName=x AllowGroups=ALL PriorityTier=9 Nodes=p100-1 ")
    (one,) = [line for line in listings.partitions(forged)[0] if line.partition.name.startswith("x ")]
    assert (one.partition.priority_tier, one.nodes) == (1, ["m40-1"])


def test_partitions(snapshot):
    kinds = {partition.name: partition for partition in snapshot.partitions}
    assert {name: kind.oversubscribe for name, kind in kinds.items() if name in {"gpu", "share", "force", "excl"}} == {
        "gpu": OverSubscribe.NO,
        "share": OverSubscribe.YES,
        "force": OverSubscribe.FORCE,
        "excl": OverSubscribe.EXCLUSIVE,
    }
    assert kinds["share"].oversubscribe_count == 4
    assert kinds["gpu"].default
    assert kinds["gpu"].max_time == 7 * DAY
    assert kinds["endless"].max_time == math.inf
    assert kinds["urgent"].priority_tier > kinds["gpu"].priority_tier
    assert sorted(snapshot.nodes.names[row] for row in kinds["k80"].nodes) == ["k80-1", "k80-2"]


def test_status_tells_the_same_as_the_snapshot(reader, jobs):
    status = reader.status()
    assert set(status) == set(jobs.job_id[jobs.pending].tolist())
    for number, about in status.items():
        at = jobs.row_of[number]
        assert about.pending
        assert (about.priority, about.held) == (jobs.priority[at], jobs.held[at])
        assert about.submit_time == jobs.submit_time[at]
        assert about.site_factor == (jobs.site_factor[at] if jobs.site_known[at] else None)
        assert about.oversubscribe == jobs.oversubscribe.value(at)


def test_sdiag_counts_since_slurmctlds_start(reader):
    since, started = reader.snapshot(1.8e9).health.since, reader.facts().started
    assert 0 <= since - started < 5


def test_facts(reader, release):
    found = reader.facts()
    assert found.release == controller.version(f"{release}.0")[1]
    assert (found.priority_type, found.site_factor_plugin) == ("priority/multifactor", "")
    assert found.scheduler_type == "sched/backfill"
    assert "bf_continue" in found.scheduler_parameters
    assert found.priority_calc_period > 0
    assert found.accounting
    assert "gres/gpu" in found.accounting_tres
    assert found.rate_limiter is (release != "22.05")


# --- the cluster in other states ---------------------------------------------------------------------------------


def test_after_a_drain_a_failure_and_a_partition_down(slurm, reader, release):
    slurm.load(RECORDED / release, "-troubled")
    snapshot = reader.snapshot(1795245000.0)
    usable = dict(zip(snapshot.nodes.names, snapshot.nodes.usable.tolist(), strict=True))
    assert usable["k80-2"]
    assert not usable["k80-1"]
    assert not usable["p100-2"]
    up = {partition.name: partition.up for partition in snapshot.partitions}
    assert (up["gpu"], up["share"]) == (True, False)
    assert up["k80"], "a partition that drains takes no new jobs, but starts those that wait (slurm.conf(5), State)"
    gpus = dict(zip(snapshot.nodes.names, snapshot.nodes.gpus.sum(axis=1).tolist(), strict=True))
    assert gpus["k80-1"] == 2  # whatever the reason of its drain says


def test_just_after_a_restart_no_node_is_usable_that_slurmctld_has_not_heard_of(slurm, reader, release):
    slurm.load(RECORDED / release, "-just-after-restart")
    snapshot = reader.snapshot(1795245000.0)
    text = (RECORDED / release / "nodes-just-after-restart.txt").read_text()
    states = [node.state for node in listings.nodes(text)[0]]
    for state, usable in zip(states, snapshot.nodes.usable.tolist(), strict=True):
        assert usable is (state.base in {"IDLE", "MIXED", "ALLOCATED"} and state.flags <= {"PLANNED"})
    assert len(snapshot.jobs) > 0


def test_an_idle_cluster_has_an_empty_queue(slurm, reader, release):
    slurm.load(RECORDED / release, "-idle")
    slurm.answer("jobs-exclusive", (RECORDED / release / "jobs-idle.txt").read_text())
    slurm.answer("diagnostics", "Server thread count: 1\nAgent queue size: 0\nJobs pending: 0\nJobs running: 0\n")
    assert len(reader.snapshot(1795245000.0).jobs) == 0


def test_under_priority_basic_no_site_factor_is_known(slurm, reader, release):
    slurm.load(RECORDED / release, "-priority-basic")
    said = failures(release)["site-factors-priority-basic"]
    slurm.answer("site-factors", said["stdout"], said["stderr"], said["returncode"])
    columns = reader.status()
    assert all(about.site_factor is None for about in columns.values())
    config = controller.config((RECORDED / release / "config-priority-basic.txt").read_text())
    assert facts_from(config, slurm.runner(), 65534).priority_type == "priority/basic"


def test_without_slurmdbd_gpus_come_from_the_request(slurm, reader, release):
    slurm.load(RECORDED / release, "-no-slurmdbd")
    if controller.version(f"{release}.0")[1] >= EXCLUSIVE_SINCE:
        slurm.answer("version", "slurm 25.11.0\n")  # read the columns without Exclusive, which is all that matters here
    jobs = reader.snapshot(1795245000.0).jobs
    pending = jobs.take(jobs.pending)
    assert pending.gpus.max() >= 2
    assert "p100" in pending.gpu_type.names
    config = controller.config((RECORDED / release / "config-no-slurmdbd.txt").read_text())
    found = facts_from(config, slurm.runner(), 65534)
    assert (found.accounting, found.accounting_reachable) == (False, False)


# --- kinds of node that real sites have (the testbed's profile "mixed") -------------------------------------------


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, release):
    slurm = StandIn(tmp_path_factory.mktemp("mixed") / "slurm")
    slurm.load(RECORDED / release, "-mixed")
    return CliReader(slurm.runner()).snapshot(1795335000.0)


@pytest.fixture
def node(mixed):
    """What is known of a node."""
    nodes = mixed.nodes

    def about(name):
        row = nodes.row_of[name]
        used = {kind: int(nodes.gpus_alloc[row, at]) for at, kind in enumerate(nodes.gpu_types) if nodes.gpus[row, at]}
        gpus = {kind: int(nodes.gpus[row, at]) for at, kind in enumerate(nodes.gpu_types) if nodes.gpus[row, at]}
        return gpus, used, bool(nodes.usable[row]), bool(nodes.asleep[row])

    return about


def test_nothing_of_a_site_with_all_kinds_of_node_is_strange(mixed):
    assert mixed.unread.rows == []
    assert len(mixed.nodes) == 12


@pytest.mark.parametrize(
    ("name", "gpus", "used", "usable", "asleep"),
    [
        ("core1", {"gpu": 2}, {"gpu": 2}, True, False),  # gpu:(null):2(IDX:0-1) on 22.05 and 24.11
        ("plain1", {"gpu": 2}, {"gpu": 1}, True, False),
        ("auto1", {"gpu": 2}, {"gpu": 1}, True, False),  # typed in gres.conf only: untyped for Slurm, too
        (
            "mig1",
            {"1g.10gb": 2, "1g.10gb+me": 1, "nvidia_a100-sxm4_3g.20gb": 1},
            {"1g.10gb": 1, "1g.10gb+me": 1, "nvidia_a100-sxm4_3g.20gb": 0},
            True,
            False,
        ),
        ("shard1", {"gpu": 2}, {"gpu": 1}, True, False),  # three shards of one GPU are in use
        ("multi1", {"a100": 2}, {"a100": 1}, True, False),
        ("smt1", {"a100": 2}, {"a100": 1}, True, False),
        ("cpu1", {}, {}, True, False),
        ("maint1", {"a100": 2}, {"a100": 0}, False, False),
        ("resv1", {"a100": 2}, {"a100": 0}, False, False),
        ("cloud1", {"a100": 2}, {"a100": 0}, True, True),  # powered down
        ("cloud2", {"a100": 2}, {"a100": 1}, True, True),  # comes up for a job
    ],
)
def test_kinds_of_node(node, name, gpus, used, usable, asleep):
    assert node(name) == (gpus, used, usable, asleep)


def test_hyper_threads_are_cpus(mixed):
    row = mixed.nodes.row_of["smt1"]
    assert (mixed.nodes.cpus[row], mixed.nodes.cpus_alloc[row]) == (16, 8)


@pytest.mark.parametrize(
    ("label", "gpus", "kind", "capable"),
    [
        ("waits for untyped", 2, "", "core1 plain1"),
        ("waits for untyped, all at once", 3, "", "core1 plain1"),
        ("untyped array", 2, "", "core1 plain1"),
        ("waits for slices", 2, "1g.10gb", "mig1"),
        ("waits for a slice with an engine", 1, "1g.10gb+me", "mig1"),
        ("waits for two kinds of slice", 2, "1g.10gb,1g.10gb+me", "mig1"),
        ("waits for a type with a hyphen", 2, "1g.10gb+me,nvidia_a100-sxm4_3g.20gb", "mig1"),
        ("waits for any three of a node", 3, "", "mig1"),
        ("waits for GPUs that are shared", 2, "", "shard1"),
        ("waits for shards", 0, "", "auto1 core1 cpu1 maint1 mig1 multi1 plain1 resv1 shard1 smt1"),
        ("waits for several resources", 2, "a100", "maint1 multi1 resv1 smt1"),
        ("waits for threads", 1, "", "smt1"),
        ("waits for a node that comes up", 2, "", "cloud2"),
        ("waits for nodes of one switch", 6, "", "auto1 core1 maint1 mig1 multi1 plain1 resv1 shard1 smt1"),
    ],
)
def test_what_jobs_of_such_a_site_ask_for_and_where_they_could_run(mixed, release, label, gpus, kind, capable):
    jobs = mixed.jobs
    at = jobs.row_of[labels(release, "-mixed")[label]]
    assert (jobs.gpus[at], jobs.gpu_type.value(at)) == (gpus, kind)
    pools = job_pools(mixed, jobs.pending)
    pool = pools.nodes[pools.pool_of[jobs.pending.tolist().index(at)]]
    assert [mixed.nodes.names[row] for row in np.flatnonzero(pool)] == capable.split()


def test_a_job_on_a_node_that_comes_up_holds_it(mixed, release):
    at = mixed.jobs.row_of[labels(release, "-mixed")["on a node that comes up"]]
    assert mixed.jobs.state[at] == JobState.RUNNING
    assert [mixed.nodes.names[node] for node in mixed.jobs.nodes_of(at)] == ["cloud2"]


def test_nodes_in_trouble_are_not_usable(release):
    found, strange = listings.nodes((RECORDED / release / "nodes-mixed-troubled.txt").read_text())
    assert strange == []
    usable = {node.name: node.state.usable for node in found}
    # smt1 is to be rebooted once it is idle: 24.11 and 26.05 have planned a job there.
    trouble = {"plain1", "core1", "cpu1", "cloud2", "maint1", "resv1"}
    assert {name for name, well in usable.items() if not well} == trouble


def test_status_of_such_a_site_tells_the_same_as_the_snapshot(slurm, mixed, release):
    slurm.load(RECORDED / release, "-mixed")
    status = CliReader(slurm.runner()).status()
    assert set(status) == set(mixed.jobs.job_id[mixed.jobs.pending].tolist())
    assert not any(about.strange for about in status.values())


# --- what clients see of a Slurm that refuses or is not there ----------------------------------------------------


def said(release, name):
    one = failures(release)[name]
    return one["stdout"], one["stderr"], one["returncode"]


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("update: unknown job", Outcome.GONE),
        ("update: finished job", Outcome.GONE),
        ("update: OverSubscribe of a running job", Outcome.GONE),
        ("update: ExcNodeList of a running job", Outcome.GONE),
        ("update: priority of a held job", Outcome.HELD),
        ("update: denied to alice", Outcome.DENIED),
        ("update: denied to bob", Outcome.DENIED),
        ("update: denied to visitor", Outcome.DENIED),
        ("update: unknown node excluded", None),
        ("update: tasks that an array has not", None),
        ("update: not a priority", None),
        ("update: all well", None),
    ],
)
def test_what_scontrol_says_of_an_update(slurm, release, name, outcome):
    one = failures(release)[name]
    number = int(one["input"].split("JobId=")[1].split()[0].split("_")[0])
    slurm.answer("update", *said(release, name))
    result = ScontrolWriter(slurm.runner()).write([Change(number, 1, Field.SITE_FACTOR, 0, SiteFactor(1), 0)])[0]
    assert (result.sent, result.outcome) == (True, outcome)


def test_good_and_bad_lines_of_one_scontrol_are_told_apart(slurm, release):
    name = "update: good and bad lines on standard input"
    slurm.answer("update", *said(release, name))
    ids = labels(release)
    numbers = [ids["plain"], 999999, ids["held by its user"], ids["typed"]]
    results = ScontrolWriter(slurm.runner()).write(
        [Change(number, 1, Field.SITE_FACTOR, 0, SiteFactor(9), 0) for number in numbers]
    )
    assert [result.outcome for result in results] == [None, Outcome.GONE, Outcome.HELD, None]


def test_an_unknown_column_is_an_error(slurm, release):
    stdout, stderr, code = said(release, "squeue: unknown column")
    slurm.answer("jobs", stdout, stderr, code)
    with pytest.raises(SlurmParseError, match="format specification"):
        slurm.runner().ask("jobs")


@pytest.mark.parametrize("state", ["slurmctld frozen", "network cut", "slurmctld stopped"])
def test_a_slurmctld_that_is_not_there_is_unavailable_whatever_is_asked(slurm, release, state):
    asked = {"squeue": "jobs", "sprio": "site-factors", "show config": "config", "sdiag": "diagnostics"}
    for words, name in asked.items():
        stdout, stderr, code = said(release, f"{state}: {words}")
        assert isinstance(failure(Answer(REGISTRY[name], stdout, stderr, code, 0.0)), SlurmUnavailableError)
    slurm.answer("ping", *said(release, f"{state}: ping"))
    with pytest.raises(SlurmUnavailableError):
        CliReader(slurm.runner()).ping()
    stdout, stderr, code = said(release, f"{state}: update")
    if code != 137:  # killed by the recorder's own time-out, as it would be by ours
        slurm.answer("update", stdout, stderr, code)
        with pytest.raises(SlurmUnavailableError):
            ScontrolWriter(slurm.runner()).write([Change(11, 1, Field.SITE_FACTOR, 0, SiteFactor(1), 0)])


def test_a_munge_that_is_down_is_unavailable(slurm, release):
    slurm.answer("jobs", *said(release, "munge stopped: squeue"))
    with pytest.raises(SlurmUnavailableError, match="Munge"):
        slurm.runner().ask("jobs")
