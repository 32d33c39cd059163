"""What Slurm prints, in the spellings of its releases, and what nobody should have to print."""

import contextlib
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.slurm.standin import CONFIG, DIAGNOSTICS, NODES, PARTITIONS

from rltuned.core.errors import SlurmParseError
from rltuned.core.scheduler import Health
from rltuned.core.unread import RowKind
from rltuned.slurm import controller, listings, notation, separated
from rltuned.slurm.notation import Tres

S = "\x1f"
FIELDS = ("a", "b", "c")
FIRST = NODES.partition("\n")[0]


def many(lines, times):
    """As many copies of the lines, each of its own name."""
    return "".join(
        re.sub(r"^(NodeName|PartitionName)=([^ ]+)", rf"\1=\g<2>{copy}", line) + "\n"
        for copy in range(times)
        for line in lines.splitlines()
    )


def columns(answer):
    found, wrong = separated.table(answer, FIELDS, "x")
    assert wrong == []
    return found


@pytest.mark.parametrize("cut", range(len(f"1{S}2{S}3{S}\n4{S}5{S}6{S}\n")))
def test_an_answer_cut_anywhere_but_between_rows_is_an_error(cut):
    whole = f"1{S}2{S}3{S}\n4{S}5{S}6{S}\n"
    if not cut or whole[:cut].endswith("\n"):
        assert columns(whole[:cut]) == ([["1"], ["2"], ["3"]] if cut else [[], [], []])
    else:
        with pytest.raises(SlurmParseError, match=r"x, line [12]"):
            columns(whole[:cut])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(*[st.text(st.characters(exclude_characters="\x1f\n"), max_size=8)] * 3), max_size=20))
def test_whatever_holds_neither_separator_nor_newline_comes_back(rows):
    answer = "".join("".join(value + S for value in row) + "\n" for row in rows)
    assert columns(answer) == [[row[i] for row in rows] for i in range(3)]


@pytest.mark.parametrize("block", [1, 5, 17, 1000])
def test_a_long_answer_is_the_same_however_much_is_read_at_a_time(block, monkeypatch):
    monkeypatch.setattr(separated, "_BLOCK", block)
    rows = [[str(number), f"user{number % 3}", "\x1e" * (number % 5)] for number in range(50)]
    lines = ["".join(value + S for value in row) for row in rows]
    assert columns("\n".join(lines) + "\n") == [list(column) for column in zip(*rows, strict=True)]
    for wrong in (f"1{S}2{S}", f"1{S}2{S}3{S}4{S}", f"1{S}2\n{S}3{S}", f"1{S}2{S}\n3{S}", ""):
        found, misfits = separated.table("\n".join([*lines[:30], wrong, *lines[30:]]) + "\n", FIELDS, "x")
        assert [misfit.number for misfit in misfits] == [31, 32][: wrong.count("\n") + 1]
        assert found[0] == [row[0] for row in rows]


def test_text_that_many_rows_share_is_kept_once():
    answer = "".join(f"{number}{S}user{number % 7}{S}{'normal'}{S}\n" for number in range(20_000))
    _, users, qos = columns(answer)
    assert (len(set(map(id, users))), len(set(map(id, qos)))) == (7, 1)


GOOD = f"1{S}2{S}3{S}\n"


@pytest.mark.parametrize("bad", [f"7{S}8{S}9{S}0{S}\n", f"7{S}\n", "squeue: warning\n", f"7{S}a\nb{S}9{S}\n"])
def test_a_row_that_does_not_fit_is_left_out_and_named(bad):
    for answer in (bad + GOOD * 4, GOOD * 2 + bad + GOOD * 2, GOOD * 4 + bad):
        found, wrong = separated.table(answer, FIELDS, "x")
        assert found == [["1"] * 4, ["2"] * 4, ["3"] * 4]
        assert [misfit.line + "\n" for misfit in wrong] == bad.splitlines(keepends=True)
        assert all(f"line {misfit.number}: {misfit.fields} fields instead of 3" in misfit.reason for misfit in wrong)


@pytest.mark.parametrize(
    "answer",
    [
        f"1{S}2{S}\n",  # a column is missing: another Slurm
        "warning\n",
        f"1{S}2{S}\n" * 5 + f"7{S}8{S}9{S}0{S}\n",
        GOOD + f"7{S}8{S}9{S}0{S}\n" + f"1{S}2",
        f"7{S}8{S}9{S}0{S}\n" * 4,
    ],
)
def test_what_is_cut_short_or_does_not_fit_as_a_whole_is_an_error(answer):
    with pytest.raises(SlurmParseError, match="x, line "):
        separated.table(answer, FIELDS, "x")


def test_a_single_row_with_a_separator_too_many_is_a_strange_row_also_when_it_is_all_there_is():
    found, (misfit,) = separated.table(f"7{S}8{S}9{S}0{S}\n", FIELDS, "x")
    assert (found, misfit.fields) == ([[], [], []], 4)


@pytest.mark.parametrize(
    ("strange", "rows", "unknown"), [(0, 0, False), (3, 3, False), (4, 8, False), (4, 7, True), (5, 9, True)]
)
def test_more_than_half_of_the_rows_and_more_than_a_few_are_a_format(strange, rows, unknown):
    if not unknown:
        separated.refuse_unknown(["why"] * strange, rows)
        return
    with pytest.raises(SlurmParseError, match=f"why; likewise {strange - 1} more of {rows} rows"):
        separated.refuse_unknown(["why"] * strange, rows)


VALUES = {
    notation.count: [("4", 4), ("4K", 4096), ("1-2", 1), ("1.50K", 1536), ("2M", 2**21), ("N/A", 0), ("", 0)],
    notation.memory: [
        *(("4000M", 4000.0), ("62.50G", 64000.0), ("16Gn", 16384.0), ("16Gc", 16384.0), ("1T", 1048576.0)),
        *(("512K", 0.5), ("4000", 4000.0), ("0", 0.0), ("2g", 2048.0)),
        *((text, math.nan) for text in ("N/A", "(null)", "")),
    ],
    notation.slurm_seconds: [
        *(("30:00", 1800), ("0:30", 30), ("30", 1800), ("1:02:03", 3723), ("1-00:00:00", 86400)),
        *(("2-3", 2 * 86400 + 3 * 3600), ("2-3:4", 2 * 86400 + 3 * 3600 + 240)),
        ("365-23:59:59", 365 * 86400 + 86399),
        *((text, math.inf) for text in ("UNLIMITED", "INFINITE")),
        *((text, math.nan) for text in ("NOT_SET", "INVALID", "Partition_Limit", "N/A", "")),
    ],
    notation.epoch: [("1795242048", 1795242048.0), ("N/A", math.nan), ("Unknown", math.nan)],
    notation.gres: [
        *((text, {"p100": 4}) for text in ("gpu:p100:4", "gres:gpu:p100:4", "gres/gpu:p100:4")),
        *(("gpu:p100:no_consume:4", {"p100": 4}), ("gpu:no_consume:4", {"": 4}), ("gres/gpu:2,gres/gpu:2", {"": 4})),
        *((text, {"k80": 1}) for text in ("gres/gpu:k80=1", "gpu:k80", "cpu=4,gres/gpu:k80=1")),
        *((text, {"": 2}) for text in ("gpu:2", "gpu:2(S:0-1)", "gpu(null):2", "gpu:2(S:0-1),nic:1(S:0)")),
        *((text, {"": 1}) for text in ("gres/gpu", "gpu", "gres/shard:8,gpu:1")),
        *(("gres/gpu=8", {"": 8}), ("gpu:p100:2(IDX:0-1)", {"p100": 2})),
        ("gpu:p100:0(IDX:N/A)", {"p100": 0}),
        ("gpu:p100:4(S:0,2-3),gpu:k80:2(S:1)", {"p100": 4, "k80": 2}),
        *(("gpu:A100:2,gpu:a100:1", {"a100": 3}), ("gres/gpu:A100=2", {"a100": 2})),
        *(("gpu:(null):2(IDX:0-1)", {"": 2}), ("gpu:(null):0(IDX:N/A)", {"": 0})),
        *(("gpu:(null):1(IDX:0),shard:(null):3(3/4,0/4)", {"": 1}), ("gpu:a100+:2", {"a100+": 2})),
        *(("gpu:1g.10gb:7", {"1g.10gb": 7}), ("gpu:1g.10gb+me:1(IDX:0)", {"1g.10gb+me": 1})),
        ("gpu:nv_1g.5gb:7(S:0),gpu:nv_2g.10gb:3(S:1)", {"nv_1g.5gb": 7, "nv_2g.10gb": 3}),
        *(("gpu:tesla_v100-sxm2-16gb:4(S:0-1)", {"tesla_v100-sxm2-16gb": 4}), ("gpu:1080:4", {"1080": 4})),
        *(("gpu:h100/2@x#é'\"$:1", {"h100/2@x#é'\"$": 1}), ("gres/gpu:1g.10gb", {"1g.10gb": 1})),
        *((text, {}) for text in ("cpu=4", "license/matlab@server:2", "(null)", "N/A", "")),
    ],
    notation.array_tasks: [
        *((text, 20) for text in ("6_[1-20%5]", "[1-20%5]", "1-20%5")),
        *(("6_[1,3-5]", 4), ("6_[1-20:4]", 5), ("6_7", 1), ("7", 1), ("0-0", 1), ("1-99:7", 15), ("N/A", 0)),
        *(("1,3,5,...", 3), ("1,3,5...", 3)),
    ],
    notation.array_limit: [
        *(("6_[1-20%5]", 5), ("1-20%5", 5), ("1,3-5%1", 1)),
        *((text, 0) for text in ("6_[1-20]", "1-20", "7", "N/A", "1-20%", "1-20%x", "1-2%1234567890", "1-2%\u0665")),
    ],
    notation.is_given: [("afterok:12(unfulfilled)", True), ("singleton(unfulfilled)", True), ("(null)", False)],
    notation.tres: [
        ("cpu=4,mem=62.50G,node=2,billing=4,gres/gpu=8,gres/gpu:p=8,bb/z=1G", Tres(4, 64000.0, 2, 8, (("p", 8),))),
        ("CPU=4,mem=1M,gres/GPU=3,gres/gpu:A100=2,gres/gpu:a100=1", Tres(4, 1.0, 0, 3, (("a100", 3),))),
        ("mem=1M,gres/gpu:a=2,gres/gpu:b=3", Tres(0, 1.0, 0, 5, (("a", 2), ("b", 3)))),
        ("cpu=,mem=1M", Tres(0, 1.0, 0, None)),
    ],
    controller.parameters: [("a,b=1,c=x=y", {"a": "", "b": "1", "c": "x=y"}), ("(null)", {})],
    controller.config_seconds: [("30 sec", 30.0), ("00:01:00", 60.0)],
    lambda text: controller.version(text)[1]: [
        ("slurm-wlm 22.05.8\n", (22, 5)),
        ("slurm 24.11.5-1\n", (24, 11)),
        ("26.05.0rc1", (26, 5)),
    ],
    controller.controllers: [
        ("Slurmctld(primary) at ctl is UP\n", [("ctl", True)]),
        ("Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n", [("a", False), ("b", True)]),
        ("", []),
    ],
}


@pytest.mark.parametrize(
    ("reads", "text", "expected"), [(reads, *row) for reads, known in VALUES.items() for row in known]
)
def test_every_spelling(reads, text, expected):
    assert reads(text) == (pytest.approx(expected, nan_ok=True) if isinstance(expected, float) else expected)


ERRORS = {
    # what does not fit into 64 bits a few times is no number
    (notation.integer, "number"): (str(2**63), str(-(2**63) - 1), "9" * 19, "1" * 16, "-" + "1" * 16),
    (notation.count, "count"): ("-1", "x", "4X", "1e3", "٣", "99999999999999999999", "4P", "1-", "²"),
    (notation.slurm_seconds, "time"): ("1:2:3:4", "-1", "1-2-3", "abc", "1:", ":1", "1 0"),
    (notation.epoch, "time stamp"): ("2026-11-21T06:20:48", "-1", "1.5", "9" * 13),
    (notation.gres, "GRES|count"): (
        *("gpu:", "gpu:a:b", "gpu:a:b:c:d", "gpu:a:b:4", "gpu:(", "gpu:a:-1", "gpu:a b:1", ",", "gpu=1=2"),
        *("gpu:a\x1b[31m:1", "gpu:2147483647,gpu:2147483647"),
    ),
    (notation.tres, "TRES|memory|count"): ("cpu", "mem=x", "gres/gpu=-1", ",", "cpu=4,,node=1"),
    (notation.array_tasks, "array tasks"): ("5-1", "1-5:0", "a", "1,,2", "...,1", "1-2-3", "_"),
    (listings.node_state, "node state"): ("", "IDLE DRAIN", "+DRAIN", "IDLE+", "1", "IDLE&"),
    (controller.version, "version"): ("slurm 24\n",),
    (controller.diagnostics, "sdiag"): ("hello\n",),
}


@pytest.mark.parametrize(
    ("reads", "complaint", "text"), [(*what, text) for what, wrong in ERRORS.items() for text in wrong]
)
def test_what_is_none_is_an_error(reads, complaint, text):
    with pytest.raises(SlurmParseError, match=complaint):
        reads(text)


OF_GPUS = (
    "NodeName=n1 CPUAlloc=4 CPUEfctv=56 CPUTot=56 ActiveFeatures=a Gres={} GresUsed={} RealMemory=256000 "
    "AllocMem=4000 State=MIXED TmpDisk=0 AllocTRES=cpu=4,gres/gpu=2\n"
)


@pytest.mark.parametrize(
    ("gres", "used", "configured", "alloc"),
    [
        ("gpu:4", "gpu:a100:3(IDX:0-2)", {"gpu": 4}, {"gpu": 3}),
        ("gpu:a100:4", "gpu:3", {"a100": 4}, {"a100": 3}),
        ("gpu:a100:2,gpu:v100:2", "gpu:(null):3(IDX:0-2)", {"a100": 2, "v100": 2}, {"a100": 2, "v100": 1}),
        ("gpu:a100:2,gpu:2", "gpu:a100:1,gpu:x:1", {"a100": 2, "gpu": 2}, {"a100": 2, "gpu": 0}),
        ("gpu:gpu:1,gpu:2", "gpu:3", {"gpu": 3}, {"gpu": 3}),
        ("(null)", "gpu:0", {}, {}),
        # A GPU of which shards are in use cannot be had as a whole, although it does not count as used.
        ("gpu:2(S:0-1),shard:8(S:0-1)", "gpu:(null):1(IDX:1),shard:(null):5(4/4,0/4)", {"gpu": 2}, {"gpu": 2}),
        ("gpu:t4:2,shard:t4:8", "gpu:t4:0(IDX:N/A),shard:t4:2(1/4,1/4)", {"t4": 2}, {"t4": 2}),
        ("gpu:T4:2,shard:T4:8", "gpu:t4:0(IDX:N/A),shard:T4:2(1/4,1/4)", {"t4": 2}, {"t4": 2}),
        ("gpu:2,shard:8", "gpu:2(IDX:0-1),shard:0(0/4,0/4)", {"gpu": 2}, {"gpu": 2}),
        # MPS: percentages of each GPU
        (
            "gpu:a100:4,mps:a100:400",
            "gpu:a100:1(IDX:3),mps:a100:150(50/100,100/100,0/100,0/100)",
            {"a100": 4},
            {"a100": 3},
        ),
        ("gpu:2,mps:200", "gpu:(null):0(IDX:N/A),mps:(null):0(0/100,0/100)", {"gpu": 2}, {"gpu": 0}),
        # 22.05
        ("gpu:2,mps:200", "gpu:(null):0(IDX:N/A),mps:(null):50(IDX:1)", {"gpu": 2}, {"gpu": 1}),
        ("gpu:4,shard:8", "gpu:(null):1(IDX:1),shard:(null):2(IDX:0,2),nic:0", {"gpu": 4}, {"gpu": 3}),
        ("gpu:2,shard:8", "gpu:(null):0(IDX:N/A),shard:(null):0(IDX:N/A),nic:0", {"gpu": 2}, {"gpu": 0}),
    ],
)
def test_gpus_in_use_are_counted_by_the_types_of_the_node(gres, used, configured, alloc):
    node = listings.nodes(OF_GPUS.format(gres, used))[0][0]
    assert (dict(node.gpus), dict(node.gpus_alloc)) == (configured, alloc)


@pytest.mark.parametrize(
    ("states", "usable"),
    [
        ("IDLE MIXED ALLOCATED MIXED+PLANNED mixed- IDLE+CLOUD ALLOCATED+COMPLETING", True),
        ("IDLE+CLOUD+POWERED_DOWN IDLE~ MIXED+CLOUD+POWERED_DOWN IDLE+CLOUD+POWERED_DOWN+POWER_UP", True),
        # scontrol reboot waits until the node is idle; with ASAP it drains it
        ("MIXED+REBOOT_REQUESTED ALLOCATED@", True),
        ("MIXED+DRAIN+REBOOT_REQUESTED DOWN+REBOOT_ISSUED", False),
        # Slurm gives a node that comes up more jobs, and one that goes down none (measured)
        ("IDLE# MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", True),
        ("DOWN+CLOUD+NOT_RESPONDING+POWERING_UP IDLE+CLOUD+POWERING_DOWN", False),
        ("IDLE+DRAIN IDLE* DOWN*+DRAIN DOWN MIXED+MAINT IDLE$ IDLE+RESERVED IDLE+MAINTENANCE+RESERVED", False),
        (
            "IDLE+INVALID_REG IDLE+BLOCKED IDLE% IDLE! IDLE^ IDLE+NOT_RESPONDING IDLE+FAIL FUTURE MIXED+RESERVED",
            False,
        ),
        ("UNKNOWN unk* inval IDLE+SOMETHING_NEW SOMETHING_NEW", False),
    ],
)
def test_only_known_good_states_are_usable(states, usable):
    for text in states.split():
        assert listings.node_state(text).usable is usable, text


def test_a_node_that_takes_no_job_for_a_while_counts_in_a_replay_and_one_that_is_broken_does_not():
    for text in ["IDLE+RESERVED", "IDLE+MAINTENANCE+RESERVED", "IDLE$", "MIXED+BLOCKED", "IDLE%", "MIXED+POWER_DOWN"]:
        assert listings.node_state(text).counts, text
    for text in ["IDLE+DRAIN", "DOWN", "IDLE*", "IDLE+RESERVED+DRAIN", "IDLE+FAIL", "IDLE+SOMETHING_NEW", "FUTURE"]:
        assert not listings.node_state(text).counts, text


def test_suffixes_and_flags_are_the_same_thing():
    assert listings.node_state("IDLE*+DRAIN").flags == {"NOT_RESPONDING", "DRAIN"}
    assert listings.node_state("idle*").flags == listings.node_state("IDLE+NOT_RESPONDING").flags


def test_a_node_that_has_to_come_up_first_is_asleep():
    for text in ("IDLE+CLOUD+POWERED_DOWN", "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", "idle~"):
        assert listings.node_state(text).asleep
    assert not any(listings.node_state(text).asleep for text in ("IDLE+CLOUD", "IDLE"))


def test_capacity_use_and_state():
    first, second = listings.nodes(NODES)[0]
    known = (first.name, first.cpus, first.cpus_alloc, first.mem, first.mem_alloc, first.tmp)
    assert known == ("p100-1", 56, 4, 256000.0, 4000.0, 900.0)
    assert (first.gpus, first.gpus_alloc, first.features) == ({"p100": 4}, {"p100": 2}, {"p100", "gpu"})
    assert first.state.usable
    assert (second.gpus, second.gpus_alloc, second.state.usable) == ({"k80": 2}, {"k80": 0}, False)


def test_a_comment_with_newlines_is_passed_over_unless_it_imitates_a_node():
    nodes, strange = listings.nodes(NODES + "more words\n\n")
    assert (len(nodes), strange) == (2, [])
    # Which of the two lines is true nobody knows: the node is there, and of no use.
    nodes, strange = listings.nodes(NODES + FIRST.replace("gpu:p100:4", "gpu:p100:8") + "\n")
    known = [(node.name, node.state.usable, node.cpus) for node in nodes]
    assert known == [("p100-1", False, 0), ("k80-1", False, 28)]
    (row,) = strange
    assert (row.kind, row.name) == (RowKind.NODE, "p100-1")
    assert "line 3: node 'p100-1' appears twice" in row.reason


def test_specialised_cores_and_memory_are_not_for_jobs():
    line = FIRST.replace("CPUEfctv=56", "CPUEfctv=54") + "\n"
    line = line.replace("Sockets=2", "MemSpecLimit=1000 Sockets=2")
    node = listings.nodes(line)[0][0]
    assert (node.cpus, node.mem) == (54, 255000.0)


def test_without_gres_used_allocated_tres_count():
    line = FIRST.replace("GresUsed=gpu:p100:2(IDX:0-1) ", "")
    assert listings.nodes(line + "\n")[0][0].gpus_alloc == {"p100": 2}
    assert listings.nodes(line + ",gres/gpu:p100=2\n")[0][0].gpus_alloc == {"p100": 2}


def test_a_partition():
    gpu, share = listings.partitions(PARTITIONS)[0]
    assert (gpu.nodes, share.nodes) == (["k80-1", "p100-1"], ["p100-1"])
    gpu, share = gpu.partition, share.partition
    assert (gpu.name, gpu.up, gpu.priority_tier, gpu.default) == ("gpu", True, 1, True)
    shared = (gpu.oversubscribe, gpu.oversubscribe_count)
    assert (*shared, gpu.max_time, gpu.max_nodes) == ("NO", 1, 604800.0, math.inf)
    assert (share.up, share.oversubscribe, share.oversubscribe_count) == (False, "YES", 4)
    assert (share.max_time, share.max_nodes, share.default) == (math.inf, 4.0, False)


@pytest.mark.parametrize(
    ("answer", "name", "complaint"),
    [
        (PARTITIONS.replace(" PriorityTier=1", ""), "gpu", "line 1: no PriorityTier="),
        (PARTITIONS.replace("YES:4", "MAYBE"), "share", "line 2: OverSubscribe"),
        (PARTITIONS + PARTITIONS.split("\n", maxsplit=1)[0] + "\n", "gpu", "line 3: partition 'gpu' appears twice"),
    ],
)
def test_a_partition_that_cannot_be_understood_is_not_up_and_of_no_tier(answer, name, complaint):
    partitions, (row,) = listings.partitions(answer)
    assert (row.kind, row.name) == (RowKind.PARTITION, name)
    assert complaint in row.reason
    found = {line.partition.name: line for line in partitions}
    line = found[name]
    assert (line.partition.up, line.partition.priority_tier, line.understood) == (False, -1, False)
    (other,) = found.keys() - {name}
    assert found[other] in listings.partitions(PARTITIONS)[0]


@pytest.mark.parametrize(
    ("reads", "answer", "complaint"),
    [
        (listings.nodes, "", "empty"),
        (listings.nodes, "\n", "no nodes"),
        (listings.nodes, NODES[:400], "cut short"),
        (listings.nodes, "slurm_load_node error\n", "not a node"),
        (listings.nodes, "NodeName= CPUTot=4\n", "line 1: a node without a name"),
        (listings.nodes, many(NODES, 4).replace("AllocMem=", "AllocMem=lots"), "line 1: memory.*7 more of 8"),
        (listings.partitions, "", "empty"),
        (listings.partitions, PARTITIONS[:-1], "cut short"),
        (listings.partitions, "nonsense\n", "not a partition"),
        (
            listings.partitions,
            many(PARTITIONS, 4).replace("PriorityTier=", "Tier="),
            "line 1: no PriorityTier=.*7 more of 8",
        ),
    ],
)
def test_a_listing_that_is_cut_or_of_an_unknown_format_is_an_error(reads, answer, complaint):
    with pytest.raises(SlurmParseError, match=complaint):
        reads(answer)


def test_configuration():
    found = controller.config(CONFIG)
    assert found["PriorityType"] == "priority/multifactor"
    assert found["PrioritySiteFactorPlugin"] == ""
    assert not any(" " in key for key in found)


@pytest.mark.parametrize("answer", ["", "x", "x\n", CONFIG.replace("ClusterName", "Other"), CONFIG[:-1]])
def test_what_is_no_configuration_is_an_error(answer):
    with pytest.raises(SlurmParseError, match="show config"):
        controller.config(answer)


def test_diagnostics():
    assert controller.diagnostics(DIAGNOSTICS).health == Health(7, 3, 14664, since=1795241740)


TOTAL = [
    *(reads for reads in VALUES if reads.__name__ != "<lambda>"),
    *(notation.integer, notation.job_id, notation.named_job, notation.known_epoch, notation.text, notation.tres_terms),
    *(listings.node_state, listings.nodes, listings.partitions),
    *(controller.config, controller.version, controller.diagnostics),
    lambda text: separated.table(text, FIELDS, "x"),
]
WORDS = "gpu gres/ gres: K G N/A (null) UNLIMITED IDLE DRAIN cpu= mem= ... NodeName= PartitionName= ² ٣ \ud7ff é"
FRAGMENTS = st.sampled_from(
    [*"0123456789", *",:;=-+*~#!%$@^()[]{}/ \n\t\x1f\x00|.", *WORDS.split(), " State=", " Reason=", "9" * 20, S + "\n"]
)


@pytest.mark.parametrize("reads", TOTAL, ids=lambda reads: getattr(reads, "__name__", "columns"))
@settings(max_examples=80, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(FRAGMENTS, max_size=25).map("".join)))
def test_anything_parses_or_is_a_named_error(reads, text):
    try:
        reads(text)
    except SlurmParseError as error:
        assert str(error)  # noqa: PT017 - any other exception fails the test; this one must say something


@pytest.mark.parametrize("reads", TOTAL, ids=lambda reads: getattr(reads, "__name__", "columns"))
@pytest.mark.parametrize(
    "unit", ["1", "(", "gpu:", "1,", "a=1,", "-", "+A", "1-", "\n", S, "[", " ", "*", "9:", "Job states ts:(1"]
)
@pytest.mark.timeout(60)
def test_a_very_long_text_is_read_or_refused(reads, unit):
    """Work that grows with the square of the length would not end within the time-out."""
    text = (unit * 300_000)[:300_000] + "!"
    with contextlib.suppress(SlurmParseError):
        reads(text)
    with contextlib.suppress(SlurmParseError):
        reads("NodeName=" + text + "\n")
