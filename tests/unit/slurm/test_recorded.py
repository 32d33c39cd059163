"""What real clusters of three releases answered (tests/recorded/, made by docker-slurm-testbed/record.py)."""

import json
import math

import numpy as np
import pytest
from unit.slurm.standin import RECORDED, StandIn, labels

from rltuned.core.changes import Change, Field, JobState, Outcome, OverSubscribe, SiteFactor
from rltuned.core.errors import SlurmParseError, SlurmUnavailableError
from rltuned.core.pools import job_pools
from rltuned.core.tables import Category
from rltuned.slurm import controller, listings
from rltuned.slurm.cli import CliReader
from rltuned.slurm.commands import EXCLUSIVE_SINCE, REGISTRY
from rltuned.slurm.facts import facts_from
from rltuned.slurm.process import Answer, failure
from rltuned.slurm.writer import ScontrolWriter

RELEASES = ("22.05", "24.11", "26.05")
HOUR = 3600.0
DAY = 86400.0


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


def gpus(number, per_node=0, gpu_type="", **others):
    return {"gpus": number, "gpus_per_node": per_node, "gpu_type": gpu_type, **others}


OF_JOBS = {
    "plain": gpus(0, cpus=1, mem=1000.0, time_limit=HOUR, array_tasks=0, array_limit=0, dependent=False, held=False),
    "typed": gpus(4, 4, "p100"),
    "untyped": gpus(2, 2),
    "one GPU without a number": gpus(1, 1),
    "gpus": gpus(3),
    "gpus typed": gpus(4, 0, "k80"),
    "gpus per node": gpus(4, 2, "p100"),
    "gpus per task": gpus(3),
    "gpus per task typed": gpus(2, 0, "k80"),
    "gpus per socket": gpus(2),
    "cpus and memory per GPU": gpus(2, mem=2 * 8192.0),
    "two nodes typed": gpus(8, 4, "p100", nodes=2, cpus=2, mem=2000.0),
    "node range": gpus(2),
    "partitions of two tiers": gpus(1, 1, "k80"),
    "depends on an array": gpus(1, 1, "", dependent=True),
    "het job": gpus(1, 1, "p100", array_tasks=0, site_known=True),
    "running typed": gpus(2, 2, "p100", site_known=False),
    "running on two nodes": gpus(4, 2, "k80", cpus=56, mem=56000.0, time_limit=DAY),
    "running without GPU": gpus(0),
    "tasks and threads": {"cpus": 12, "mem": 12000.0},
    "memory per CPU": {"cpus": 4, "mem": 12288.0},
    "all memory": {"cpus": 1, "mem": math.nan},
    "unlimited": {"time_limit": math.inf},
    "running without limit": {"time_limit": math.inf, "end_time": math.inf},
    "half a minute": {"time_limit": 60.0},
    "days": {"time_limit": 7 * DAY},
    "deadline": {"time_limit": 600.0},
    "array": {"array_tasks": 20, "array_limit": 0, "site_known": True},
    "array limited": {"array_tasks": 20, "array_limit": 3},
    "array with steps": {"array_tasks": 15, "array_limit": 0},
    "array of odd tasks": {"array_tasks": 600, "array_limit": 0},
    "array of one": {"array_tasks": 1, "array_limit": 0},
    "running array, two at a time": {"array_tasks": 18, "array_limit": 2},
    "depends task by task": {"array_tasks": 20, "array_limit": 0, "dependent": True, "eligible_time": math.nan},
    "depends on a job": {"dependent": True, "eligible_time": math.nan, "site_known": False},
    "dependency can never be met": {"dependent": True, "eligible_time": math.nan},
    "held by its user": {"held": True, "site_known": False},
    "held by an administrator": {"held": True, "site_known": False},
    "made impossible": {"held": True},
    "begins later": {"site_known": False},
    "explicit priority": {"priority": 4242, "site_known": False},
    "nice": {"nice": 321},
    "negative nice": {"nice": -50},
    "site factor": {"site_factor": 1500, "nice": 10},
    "negative site factor": {"site_factor": -700, "site_known": True},
    "two partitions": {"site_factor": 33, "exclusive": False},
    "exclusive": {"exclusive": True, "oversubscribe": OverSubscribe.NO},
    "exclusive in a shared partition": {"exclusive": True},
    "exclusive partition": {"exclusive": True},
    "exclusive user": {"exclusive": True, "oversubscribe": OverSubscribe.USER},
    "oversubscribe": {"exclusive": False, "oversubscribe": OverSubscribe.YES},
    "set to YES": {"exclusive": False, "oversubscribe": OverSubscribe.YES},
    "default in a shared partition": {"exclusive": False, "oversubscribe": OverSubscribe.OK},
    "wants nodes": {"req_nodes": "p100-[1-2]"},
    "constraint or": {"features": "p100|k80"},
    "constraint and": {"features": "p100&gpu"},
    "constraint one of": {"features": "[p100|k80]"},
    "in a reservation": {"reservation": "exam"},
    "local disk": {"tmp": 51200.0},
    "high QOS": {"qos": "high"},
}


@pytest.mark.parametrize("label", OF_JOBS)
def test_what_is_known_of_a_job(jobs, row, label):
    at, known = row(label), OF_JOBS[label]
    columns = {name: getattr(jobs, name) for name in known}
    found = {name: of.value(at) if isinstance(of, Category) else of[at] for name, of in columns.items()}
    assert found == pytest.approx(known, nan_ok=True)


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
    assert jobs.state[row("running without GPU")] == JobState.RUNNING, "it is suspended"
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


def test_what_a_job_waits_for_and_how_its_priority_is_made(jobs, row):
    begins, plain = row("begins later"), row("plain")
    assert jobs.eligible_time[begins] - jobs.submit_time[begins] == pytest.approx(HOUR, abs=5)
    assert jobs.priority[row("site factor")] - jobs.priority[plain] == 1500 - 10
    assert jobs.priority[row("negative site factor")] - jobs.priority[plain] == -700 - 10
    assert "nice" not in jobs.decided.value(plain)
    for label, nice in (("site factor", 10), ("nice", 321), ("negative nice", -50)):
        assert f"nice={nice}" in jobs.decided.value(row(label)).split()


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


def test_where_two_releases_differ_in_what_a_default_is(jobs, row, blind):
    assert jobs.oversubscribe.value(row("plain")) == (OverSubscribe.UNKNOWN if blind else OverSubscribe.OK)
    assert jobs.oversubscribe.value(row("set to NO")) == (OverSubscribe.UNKNOWN if blind else OverSubscribe.NO)
    assert not jobs.exclusive[row("plain")]
    assert jobs.exc_nodes.value(row("avoids nodes")) in {"m40-1,p100-[1-2]", "p100-[1-2],m40-1"}
    assert sorted(jobs.partition.value(row("partitions of two tiers")).split(",")) == ["gpu", "k80", "urgent"]


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
    shared = {"gpu": "NO", "share": "YES", "force": "FORCE", "excl": "EXCLUSIVE"}
    assert {name: kinds[name].oversubscribe for name in shared} == shared
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
    slurm.answer("site-factors", *said(release, "site-factors-priority-basic"))
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


def test_nothing_of_a_site_with_all_kinds_of_node_is_strange(mixed):
    assert mixed.unread.rows == []
    assert len(mixed.nodes) == 12


GPUS_OF_NODES = {
    "core1": {"gpu": (2, 2)},  # gpu:(null):2(IDX:0-1) on 22.05 and 24.11
    "plain1": {"gpu": (2, 1)},
    "auto1": {"gpu": (2, 1)},  # typed in gres.conf only: untyped for Slurm, too
    "mig1": {"1g.10gb": (2, 1), "1g.10gb+me": (1, 1), "nvidia_a100-sxm4_3g.20gb": (1, 0)},
    "shard1": {"gpu": (2, 1)},  # three shards of one GPU are in use
    "multi1": {"a100": (2, 1)},
    "smt1": {"a100": (2, 1)},
    "cpu1": {},
    "maint1": {"a100": (2, 0)},
    "resv1": {"a100": (2, 0)},
    "cloud1": {"a100": (2, 0)},  # powered down
    "cloud2": {"a100": (2, 1)},  # comes up for a job
}
"""There, and in use."""


@pytest.mark.parametrize("name", GPUS_OF_NODES)
def test_kinds_of_node(mixed, name):
    nodes, row = mixed.nodes, mixed.nodes.row_of[name]
    has = zip(nodes.gpu_types, nodes.gpus[row].tolist(), nodes.gpus_alloc[row].tolist(), strict=True)
    assert {kind: (number, used) for kind, number, used in has if number} == GPUS_OF_NODES[name]
    assert nodes.usable[row] == (name not in {"maint1", "resv1"})
    assert nodes.asleep[row] == name.startswith("cloud")


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


def raise_jobs(slurm, *numbers):
    changes = [Change(number, 1, Field.SITE_FACTOR, 0, SiteFactor(9), 0) for number in numbers]
    return ScontrolWriter(slurm.runner()).write(changes)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        *((f"{what} job", Outcome.GONE) for what in ("unknown", "finished", "OverSubscribe of a running")),
        *(("ExcNodeList of a running job", Outcome.GONE), ("priority of a held job", Outcome.HELD)),
        *((f"denied to {who}", Outcome.DENIED) for who in ("alice", "bob", "visitor")),
        *(
            (what, None)
            for what in ("unknown node excluded", "tasks that an array has not", "not a priority", "all well")
        ),
    ],
)
def test_what_scontrol_says_of_an_update(slurm, release, name, outcome):
    one = failures(release)[f"update: {name}"]
    number = int(one["input"].split("JobId=")[1].split()[0].split("_")[0])
    slurm.answer("update", *said(release, f"update: {name}"))
    (result,) = raise_jobs(slurm, number)
    assert (result.sent, result.outcome) == (True, outcome)


def test_good_and_bad_lines_of_one_scontrol_are_told_apart(slurm, release):
    name = "update: good and bad lines on standard input"
    slurm.answer("update", *said(release, name))
    ids = labels(release)
    numbers = [ids["plain"], 999999, ids["held by its user"], ids["typed"]]
    results = raise_jobs(slurm, *numbers)
    assert [result.outcome for result in results] == [None, Outcome.GONE, Outcome.HELD, None]


def test_an_unknown_column_is_an_error(slurm, release):
    slurm.answer("jobs", *said(release, "squeue: unknown column"))
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
            raise_jobs(slurm, 11)


def test_a_munge_that_is_down_is_unavailable(slurm, release):
    slurm.answer("jobs", *said(release, "munge stopped: squeue"))
    with pytest.raises(SlurmUnavailableError, match="Munge"):
        slurm.runner().ask("jobs")
