"""The snapshot: one row per record, every number where it belongs, and no queue that only looks empty."""

import math

import numpy as np
import pytest
from unit.slurm.standin import DIAGNOSTICS, NODES, PARTITIONS, RUNNING, job, rows, sprio_row

from rltuned.core.changes import SPLIT, JobState, OverSubscribe
from rltuned.core.errors import SlurmParseError, SlurmUnavailableError
from rltuned.core.pools import bounded_pools
from rltuned.core.taken import taken_gpus
from rltuned.core.unread import RowKind
from rltuned.decide.scope import priority_tiers
from rltuned.slurm.cli import CliReader
from rltuned.slurm.commands import SEPARATOR

NOW = 1795242100.0


def read(slurm, jobs, **others):
    slurm.queue(jobs, **others)
    return CliReader(slurm.runner()).snapshot(NOW)


def test_a_pending_job(slurm):
    one = job(7, Nice=-5, MinTmpDisk="10G", Feature="p100&gpu", ReqNodes="p100-1")
    one |= {"StartTime": "1795278048", "EndTime": "1795279848"}  # what 22.05 expects is no start
    jobs = read(slurm, [one], factors={7: -30}).jobs
    assert (jobs.job_id[0], jobs.state[0], jobs.array_tasks[0], jobs.het_job_id[0]) == (7, JobState.PENDING, 0, 0)
    texts = (jobs.user, jobs.account, jobs.partition, jobs.qos, jobs.features, jobs.req_nodes, jobs.reservation)
    assert [of.value(0) for of in texts] == ["alice", "physics", "gpu", "normal", "p100&gpu", "p100-1", ""]
    assert (jobs.submit_time[0], jobs.eligible_time[0], jobs.time_limit[0]) == (1795242048.0, 1795242048.0, 1800.0)
    assert math.isnan(jobs.start_time[0])
    assert math.isnan(jobs.end_time[0])
    assert (jobs.gpus[0], jobs.gpus_per_node[0], jobs.gpu_type.value(0)) == (2, 2, "p100")
    assert (jobs.nodes[0], jobs.tasks[0], jobs.cpus[0], jobs.mem[0], jobs.tmp[0]) == (1, 1, 4, 4000.0, 10240.0)
    assert (jobs.priority[0], jobs.nice[0], jobs.site_factor[0], jobs.site_known[0]) == (16103, -5, -30, True)
    assert (jobs.held[0], jobs.dependent[0], jobs.exclusive[0]) == (False, False, False)
    assert jobs.oversubscribe.value(0) == OverSubscribe.OK


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("R S CG CF SO ST SI RS RQ RH", JobState.RUNNING),
        ("SE RD PD", JobState.PENDING),  # requeued with a special exit, or lost its reservation
        ("CD RV RF", JobState.OTHER),
    ],
)
def test_every_state_waits_or_holds_resources_or_neither(slurm, states, expected):
    for state in states.split():
        found = read(slurm, [job(8, **{**RUNNING, "StateCompact": state, "PriorityLong": "0"})])
        assert found.jobs.state.tolist() == [expected]
        assert found.jobs.held[0] == (expected == JobState.PENDING)
        assert not found.unread


def test_waiting_tasks_of_an_array_are_one_row_under_the_arrays_id(slurm):
    running = [job(41 + task, **{**RUNNING, "ArrayJobID": "41", "ArrayTaskID": str(task)}) for task in (1, 2)]
    queue = [job(44, ArrayJobID=41, ArrayTaskID="3-20%2"), *running]
    jobs = read(slurm, queue, excluded={41: "k80-1"}, factors={41: 9}).jobs
    assert jobs.job_id.tolist() == [41, 42, 43]
    assert jobs.array_tasks.tolist() == [18, 0, 0]
    assert jobs.array_limit.tolist() == [2, 0, 0]
    assert jobs.site_factor.tolist() == [9, 0, 0]
    assert jobs.exc_nodes.value(0) == "k80-1"


def test_the_tasks_of_an_array_that_wait_are_told_of_before_those_that_run_or_were_requeued(slurm):
    running = job(41, **{**RUNNING, "ArrayJobID": "41", "ArrayTaskID": "20"})
    waiting, rest = job(55, ArrayJobID=41, ArrayTaskID="1-3"), job(41, ArrayJobID=41, ArrayTaskID="4-9")
    again = job(55, ArrayJobID=41, ArrayTaskID="2", SubmitTime=1795242999)
    other = job(56, **{**RUNNING, "ArrayJobID": "41", "ArrayTaskID": "3"})
    for order in (1, -1):
        jobs = read(slurm, [running, waiting][::order]).jobs
        assert (jobs.job_id.tolist(), jobs.state.tolist(), jobs.array_tasks.tolist()) == ([41], [JobState.PENDING], [3])
        # One that was requeued has the site factor of its own record; arrays that run are told.
        found = read(slurm, [again, other][::order], factors={55: -1000})
        row = found.jobs.row_of[41]
        assert (found.jobs.site_known[row], found.jobs.site_factor[row]) == (True, -1000)
        assert found.arrays == {41: 1795242048}
        jobs = read(slurm, [again, rest][::order], factors={55: -1000}).jobs
        assert (jobs.site_known[0], jobs.submit_time[0], jobs.array_tasks[0]) == (False, 1795242048, 7)


def test_an_array_whose_tasks_differ_stands_wherever_one_of_them_does_also_where_squeue_shows_one_for_all(slurm):
    master, changed = job(41, ArrayTaskID="4-9"), job(55, ArrayJobID=41, ArrayTaskID="2", QOS="high")
    terms = (0, 0, 10000, 103, 1000, 9000, 0)
    for queue, listed in (([master, changed], [master, changed]), ([master], [master, changed])):
        slurm.queue(listed)
        slurm.answer("jobs", rows(queue))
        slurm.answer("site-factors", sprio_row(41, 9) + sprio_row(55, 9, 20112, terms=terms))
        jobs = CliReader(slurm.runner()).snapshot(NOW).jobs
        assert (jobs.job_id.tolist(), jobs.request.texts()) == ([41], [SPLIT])
        assert (jobs.site_factor[0], jobs.base[0], jobs.base_least[0]) == (9, 20103, 16094)
        assert jobs.decided.value(0) == "partition=1000 qos=5000 or partition=1000 qos=9000"
    # One that has started or ended meanwhile is not in sprio.
    slurm.answer("site-factors", sprio_row(41, 9))
    assert CliReader(slurm.runner()).snapshot(NOW).jobs.request.texts() != [SPLIT]


def test_a_job_that_fewer_rows_than_slurmctld_counts_lack_may_be_there_unless_an_odd_row_may_be_the_others(slurm):
    slurm.answer("diagnostics", DIAGNOSTICS.replace("Jobs pending:   0", "Jobs pending:   10"))
    for tasks, missing in (("1-8", True), ("1-9", False), ("1-?", False)):
        assert read(slurm, [job(7), job(8, ArrayTaskID=tasks)]).is_unread(9) is missing
        assert not read(slurm, [job(7), job(8, ArrayTaskID=tasks)]).is_unread(7)


def test_a_job_that_appears_twice_is_left_alone(slurm):
    snapshot = read(slurm, [job(7), job(8), job(7, PriorityLong=5)])
    assert snapshot.jobs.job_id.tolist() == [7, 8]
    assert snapshot.unread.jobs.keys() == {7}
    assert "job 7 appears twice" in snapshot.unread.rows[0].reason


def test_times_that_are_not_known_are_nan_and_limits_that_are_not_set_are_the_partitions(slurm):
    queue = [job(1, EligibleTime="N/A", Dependency="afterok:2(unfulfilled)"), job(2, TimeLimit="UNLIMITED")]
    queue += [job(3, TimeLimit="Partition_Limit"), job(4, TimeLimit="NOT_SET", Partition="gpu,share")]
    jobs = read(slurm, queue).jobs
    assert math.isnan(jobs.eligible_time[0])
    assert jobs.dependent.tolist() == [True, False, False, False]
    assert jobs.time_limit.tolist() == [1800.0, math.inf, 604800.0, math.inf]


@pytest.mark.parametrize(
    ("alloc", "options", "expected"),
    [
        # sites that do not track gres/gpu
        ("cpu=4,node=2", {"tres_per_node": "gres:gpu:k80:2", "NumNodes": "2"}, (4, 2, "k80")),
        ("cpu=4,node=1", {"tres_per_job": "gpu:5"}, (5, 0, "")),
        ("cpu=4,node=1", {"tres_per_task": "cpu=1,gres/gpu:k80=1", "NumTasks": 3}, (3, 0, "k80")),
        ("cpu=4,node=1", {"tres_per_socket": "gpu:2"}, (2, 0, "")),
        ("N/A", {}, (0, 0, "")),
        ("cpu=1,node=2,gres/gpu=2,gres/gpu:k80=1,gres/gpu:p100=1", {}, (2, 0, "k80,p100")),
        ("cpu=1,node=1,gres/gpu=1", {"tres_per_node": "gres/gpu:p100:1"}, (1, 1, "p100")),
        # Slurm compares TRES without case, and shows each as it was written there
        ("cpu=1,node=1,gres/gpu=2,gres/gpu:a100=2", {"tres_per_node": "gres/gpu:A100:2"}, (2, 2, "a100")),
        # of two types the site tracks one
        ("node=1,gres/gpu=2,gres/gpu:1g=1", {"tres_per_node": "gres/gpu:1g:1,gres/gpu:1g+me:1"}, (2, 2, "1g,1g+me")),
    ],
)
def test_gpus_of_a_job_whichever_way_it_asked(slurm, alloc, options, expected):
    jobs = read(slurm, [job(7, **{"tres_alloc": alloc, "tres_per_node": "N/A", **options})]).jobs
    assert (jobs.gpus[0], jobs.gpus_per_node[0], jobs.gpu_type.value(0)) == expected


def test_all_memory_of_a_node_is_no_number(slurm):
    asked = [job(1, MinMemory="0"), job(2, **{**RUNNING, "MinMemory": "0"}), job(3, tres_alloc="cpu=4")]
    assert np.isnan(read(slurm, asked).jobs.mem).all()


def test_a_job_that_runs_on_nodes_of_its_own_has_the_gpus_that_it_asked_for(slurm):
    got = {"NumCPUs": "56", "tres_alloc": "cpu=56,mem=56000M,node=1,gres/gpu=4,gres/gpu:p100=4"}
    asked = [job(1, OverSubscribe="NO", **RUNNING, **got), job(2, **RUNNING, **got)]
    jobs = read(slurm, asked).jobs
    assert jobs.gpus.tolist() == [2, 4]
    assert taken_gpus(read(slurm, asked), jobs.running).tolist() == [4.0, 4.0]


NO_TERMS = (0,) * 7


@pytest.mark.parametrize(
    ("row", "known"),
    [
        (sprio_row(7, 0, 4242, "", NO_TERMS), False),
        (sprio_row(7, 0, 1, "", NO_TERMS), False),
        (sprio_row(7, 50, 50, "", NO_TERMS), True),
        (sprio_row(7, 0, 77, "cpu=77", NO_TERMS), True),
        (sprio_row(7, 0, 10, "", (-10, 0, 0, 0, 0, 0, 0)), True),
        (sprio_row(7, 0, 10, "", (0, 0, 0, 0, 0, 0, 10)), True),
    ],
)
def test_a_job_that_sprio_lists_with_an_explicit_priority_is_not_under_multifactor(slurm, row, known):
    slurm.queue([job(7)])
    slurm.answer("site-factors", row)
    reader = CliReader(slurm.runner())
    assert bool(reader.snapshot(NOW).jobs.site_known[0]) is known
    assert (reader.status([7])[7].site_factor is not None) is known


def test_a_job_that_weighs_differently_in_each_of_its_partitions_has_the_highest_and_the_lowest_sum(slurm):
    slurm.queue([job(7, Partition="gpu,share,k80", PriorityLong=9116)])
    slurm.answer("site-factors", sprio_row(7, 33, 9116) + sprio_row(7, 33, 10192) + sprio_row(7, 33, 9516))
    reader = CliReader(slurm.runner())
    snapshot = reader.snapshot(NOW)
    jobs = snapshot.jobs
    assert (jobs.priority[0], jobs.base[0], jobs.base_least[0]) == (9116, 10159, 9083)
    assert snapshot.bases == {7: (9083, 9483, 10159)}
    assert reader.status([7])[7].bases == (9083, 9483, 10159)


@pytest.mark.parametrize(
    ("shown", "row", "site", "base"),
    [
        # Slurm shows 1 for all that is less. Age 120, fair share 100, job size 30, partition 20, QOS 40, TRES 60, nice
        # 70 make 300, and 900 less by the site factor.
        (1, sprio_row(7, -900, 1, "cpu=10,gres/gpu=50", (70, 120, 100, 30, 20, 40, 0)), -900, 300),
        (1, sprio_row(7, 0, 1, "cpu=1", (500, 99, 0, 0, 0, 0, 0)), 0, -400),
        # Rounded terms: 3 instead of 2.5 or less. Slurm shows 1 only where base and site factor are less than 2.
        (1, sprio_row(7, -1, 1, "", (0, 1, 1, 1, 0, 0, 0)), -1, 2),
        # An admin set the site factor between the two commands: 16103 was without it.
        (16103, sprio_row(7, 4000, 20103), 4000, 16103),
    ],
)
def test_the_base_is_what_the_terms_without_the_site_factor_add_up_to(slurm, shown, row, site, base):
    slurm.queue([job(7, PriorityLong=shown)])
    slurm.answer("site-factors", row)
    jobs = CliReader(slurm.runner()).snapshot(NOW).jobs
    assert (jobs.priority[0], jobs.site_factor[0], jobs.base[0]) == (shown, site, base)


@pytest.mark.parametrize(
    ("shown", "column", "value", "exclusive"),
    [
        # before 26.05
        *(("OK", None, "OK", False), ("YES", None, "YES", False), ("NO", None, "NO", True)),
        *(("USER", None, "USER", True), ("??", None, "NO", True)),
        # since then, exclusivity has its own column, and a NO says nothing
        *(("NO", "NO", "UNKNOWN", False), ("OK", "NO", "OK", False), ("NO", "NODE", "NO", True)),
        *(("OK", "USER", "USER", True), ("YES", "NODE", "NO", True), ("NO", "SOMETHING", "NO", True)),
    ],
)
def test_exclusivity(slurm, shown, column, value, exclusive):
    more = {}
    if column is not None:
        slurm.answer("version", "slurm-wlm 26.05.5\n")
        more = {"Exclusive": column}
    jobs = read(slurm, [job(1, OverSubscribe=shown, **more)]).jobs
    assert (jobs.oversubscribe.value(0), jobs.exclusive[0]) == (value, exclusive)
    asked = [call for call in slurm.calls if call.startswith("squeue") and "%x" not in call]
    assert all(("Exclusive" in call) is bool(more) for call in asked)


def test_time_release_and_load(slurm):
    snapshot = read(slurm, [])
    assert (snapshot.time, snapshot.release) == (NOW, (24, 11))
    assert (snapshot.health.server_threads, snapshot.health.agent_queue) == (7, 3)


@pytest.mark.parametrize(
    ("state", "runs", "usable"),
    [
        # A reservation of a few cores or GPUs flags the whole node, and others go on starting on the rest.
        ("MIXED+RESERVED", {"Reservation": "(null)"}, True),
        ("MIXED+RESERVED", {"Reservation": "course"}, False),
        ("MIXED+RESERVED", {"Reservation": "(null)", "NodeList": "k80-1"}, False),
        ("MIXED+RESERVED+DRAIN", {"Reservation": "(null)"}, False),
        ("MIXED+MAINTENANCE+RESERVED", {"Reservation": "(null)"}, False),
    ],
)
def test_a_reserved_node_is_usable_while_a_job_without_a_reservation_runs_there(slurm, state, runs, usable):
    slurm.answer("nodes", NODES.replace("State=MIXED ", f"State={state} "))
    nodes = read(slurm, [job(8, **{**RUNNING, **runs})]).nodes
    assert nodes.usable[nodes.row_of["p100-1"]] == usable
    assert nodes.counted.tolist() == ["DRAIN" not in state, False]


def test_a_node_that_jobs_run_on_and_scontrol_does_not_list_is_there_and_not_usable(slurm):
    snapshot = read(slurm, [job(8, **{**RUNNING, "NodeList": "p100-1,elsewhere-[1-2]"}), job(7)])
    nodes = snapshot.nodes
    assert [nodes.names[row] for row in snapshot.jobs.nodes_of(0)] == ["p100-1", "elsewhere-1", "elsewhere-2"]
    assert nodes.usable.tolist() == [True, False, False, False]
    assert nodes.cpus.tolist() == [56, 28, 0, 0]
    assert [row.name for row in snapshot.unread.rows] == ["elsewhere-1", "elsewhere-2"]
    assert not snapshot.unread.jobs
    # So many that the answer must have been cut short between two lines.
    with pytest.raises(SlurmParseError, match=r"lacks 'elsewhere-1'.*8 more of 11"):
        read(slurm, [job(8, **{**RUNNING, "NodeList": "elsewhere-[1-9]"})])


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        *(({"PriorityLong": "high"}, "PriorityLong"), ({"SubmitTime": "N/A"}, "SubmitTime")),
        *(({"tres_alloc": "nonsense"}, "tres-alloc"), ({"NumCPUs": "-3"}, "NumCPUs")),
        *(({"ArrayTaskID": "1-?"}, "ArrayTaskID"), ({"StateCompact": "XX"}, "StateCompact")),
        *(({**RUNNING, "NodeList": "p100-["}, "NodeList"), ({**RUNNING, "EndTime": "never"}, "EndTime")),
    ],
)
def test_a_job_that_cannot_be_understood_costs_itself_and_is_named_with_its_column(slurm, fields, column):
    clean = read(slurm, [job(7), job(9)]).jobs
    snapshot = read(slurm, [job(7), job(8, **fields), job(9)])
    (row,) = snapshot.unread.rows
    assert (row.kind, row.name) == (RowKind.JOB, "8")
    assert f"job 8, column {column}" in row.reason
    assert snapshot.unread.jobs == {8: row.reason}
    assert snapshot.unread.about(8, queued=True)
    assert not snapshot.unread.about(7, queued=True)
    assert not snapshot.unread.about(1234, queued=False)
    waits = fields.get("StateCompact", "PD") == "PD"
    jobs = snapshot.jobs
    # While it waits it has a row: others must not be moved past it unseen. One that runs is in its nodes' allocation.
    assert jobs.job_id.tolist() == ([7, 8, 9] if waits else [7, 9])
    others = jobs.take(jobs.job_id != 8)
    assert np.array_equal(others.priority, clean.priority)
    assert others.gpu_type.texts() == clean.gpu_type.texts()
    assert np.isfinite(jobs.submit_time).all()


def test_where_more_than_half_of_the_jobs_are_strange_it_is_the_format_and_an_error(slurm):
    queue = [job(number, TimeLimit="soon" if number <= 4 else "30:00") for number in range(1, 9)]
    assert read(slurm, queue).unread.jobs.keys() == {1, 2, 3, 4}
    with pytest.raises(SlurmParseError, match=r"job 1, column TimeLimit.*3 more of 7 rows"):
        read(slurm, queue[:-1])


@pytest.mark.parametrize("number", ["?", "", "0", "-1", "9" * 15])
def test_while_a_row_does_not_say_whose_it_is_no_job_that_is_missing_counts_as_gone(slurm, number):
    snapshot = read(slurm, [job(7), job(8, JobID=number, ArrayJobID=number)])
    assert snapshot.jobs.job_id.tolist() == [7]
    assert snapshot.unread.counts == {RowKind.JOB: 1}
    assert "whose" in snapshot.unread.about(1234, queued=False)
    assert not snapshot.unread.about(7, queued=True)


def test_a_list_of_excluded_nodes_that_is_too_long_is_its_jobs_and_no_others(slurm):
    snapshot = read(slurm, [job(7), job(8)], excluded={7: ",".join(["p100-1"] * 20_000), 8: "p100-1"})
    assert not snapshot.unread
    pools = bounded_pools(snapshot, snapshot.jobs.pending)
    assert (pools.pool_of == pools.rest).tolist() == [True, False]


def test_rows_with_separators_and_newlines_in_a_name_are_left_out_also_where_they_are_most(slurm):
    odd = [
        job(n, Account=text) for n, text in enumerate([f"a{SEPARATOR}b", "a\nb", f"a{SEPARATOR}\n7{SEPARATOR}"] * 9, 20)
    ]
    snapshot = read(slurm, [job(7), *odd, job(8)])
    assert snapshot.jobs.job_id.tolist() == [7, 8]
    assert snapshot.unread.jobs.keys() == set(range(20, 47)), "no name names another job"
    assert CliReader(slurm.runner()).status([7, 8])[8].pending


@pytest.mark.parametrize("name", ["site-factors", "excluded"])
def test_a_row_that_does_not_say_whose_it_is_costs_the_jobs_that_the_others_do_not_list(slurm, name):
    slurm.queue([job(7), job(8), job(9, **RUNNING)], excluded={7: "p100-1", 8: "k80-1"}, factors={7: 1, 8: 2})
    text = (slurm.folder / f"{name}.out").read_text()
    slurm.answer(name, text.replace(f"7{SEPARATOR}", f"?{SEPARATOR}"))
    reader = CliReader(slurm.runner())
    snapshot = reader.snapshot(NOW)
    assert snapshot.jobs.job_id.tolist() == [7, 8, 9]
    assert snapshot.unread.jobs.keys() == {7}
    found = reader.status([7, 8, 9, 1234])
    assert (bool(found[7].strange), found[8].site_factor) == (name == "site-factors", 2)
    assert not found[9].strange
    assert 1234 not in found, "the queue does not have it"


def test_what_is_said_of_a_strange_row_is_harmless_on_a_terminal(slurm):
    name = "esc\x1b[31m\u202e"
    slurm.answer("partitions", PARTITIONS + f"PartitionName={name} AllowGroups=ALL State=UP\n")
    (row,) = read(slurm, [job(7)]).unread.rows
    assert row.name == name
    assert str(row).startswith("partition esc\\x1b[31m\\u202e: scontrol show partition, line 3: no ")
    assert str(row).isprintable()


@pytest.mark.parametrize(
    ("old", "new", "nodes"),
    [
        ("PriorityTier=1", "PriorityTier=high", [0, 1]),
        ("Nodes=k80-1,p100-1", "Nodes=k80-[", [0, 1]),
        ("Nodes=k80-1,p100-1 PriorityTier=1", "Nodes=p100-1 PriorityTier=x", [0]),
    ],
)
def test_a_strange_partition_is_not_up_and_its_jobs_are_left_to_slurm(slurm, old, new, nodes):
    assert old in PARTITIONS
    slurm.answer("partitions", PARTITIONS.replace(old, new))
    snapshot = read(
        slurm, [job(7), job(8, Partition="share"), job(9, Partition="gpu,share")], factors={7: 0, 8: 0, 9: 0}
    )
    gpu = snapshot.partition_by_name["gpu"]
    assert (gpu.up, gpu.priority_tier, gpu.nodes.tolist()) == (False, -1, nodes)
    assert snapshot.unread.counts == {RowKind.PARTITION: 1}
    assert priority_tiers(snapshot, snapshot.jobs.pending).tolist() == [-1, 3, -1]


def test_what_a_partition_bills(slurm):
    weights = "State=UP TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=16"
    slurm.answer("partitions", PARTITIONS.replace("State=UP", weights))
    first, second = read(slurm, []).partitions
    assert (first.billing, second.billing) == ({"cpu": 1.0, "mem": 0.25 / 1024, "gres/gpu": 16.0}, None)


def test_a_queue_that_looks_empty_although_slurmctld_counts_jobs_is_an_error(slurm):
    slurm.answer("diagnostics", DIAGNOSTICS.replace("Jobs pending:   0", "Jobs pending:   123"))
    with pytest.raises(SlurmParseError, match=r"counts 123 pending.*PrivateData"):
        read(slurm, [])


def test_where_sdiag_is_denied_the_load_is_unknown_and_the_queue_is_read_all_the_same(slurm):
    slurm.answer("diagnostics", "", "slurm_get_statistics: Access/permission denied\n", code=1)
    snapshot = read(slurm, [job(7)])
    assert (len(snapshot.jobs), snapshot.health.server_threads) == (1, 0)


@pytest.mark.parametrize("name", ["version", "jobs", "excluded", "site-factors", "nodes", "partitions", "diagnostics"])
@pytest.mark.parametrize(
    ("stdout", "stderr", "code"),
    [
        ("", "slurm_load error: Unable to contact slurm controller (connect failure)\n", 1),
        ("half an ans", "", 0),
        ("\x00\x01\x02 garbage \x1f\x1f\n", "", 0),
    ],
    ids=["unreachable", "cut short", "garbage"],
)
def test_whichever_command_fails_the_snapshot_is_an_error_never_an_empty_queue(slurm, name, stdout, stderr, code):
    slurm.queue([job(7)])
    slurm.answer(name, stdout, stderr, code)
    with pytest.raises((SlurmUnavailableError, SlurmParseError)):
        CliReader(slurm.runner()).snapshot(NOW)


def test_nothing_is_written_while_reading(slurm):
    reader = CliReader(slurm.runner())
    slurm.queue([job(7)])
    reader.ping()
    reader.facts()
    reader.snapshot(NOW)
    reader.status()
    assert slurm.stdin is None
    assert not [call for call in slurm.calls if call.strip() == "scontrol"]


def test_ping_needs_a_controller_that_says_it_is_up(slurm):
    slurm.answer("ping", "Slurmctld(primary) at ctl is DOWN\n", code=1)
    with pytest.raises(SlurmUnavailableError, match="is DOWN"):
        CliReader(slurm.runner()).ping()
