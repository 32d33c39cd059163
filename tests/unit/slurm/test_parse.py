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

S = "\x1f"
FIELDS = ("a", "b", "c")


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


class TestTables:
    @pytest.mark.parametrize("cut", range(len(f"1{S}2{S}3{S}\n4{S}5{S}6{S}\n")))
    def test_an_answer_cut_anywhere_but_between_rows_is_an_error(self, cut):
        whole = f"1{S}2{S}3{S}\n4{S}5{S}6{S}\n"
        if not cut or whole[:cut].endswith("\n"):
            assert columns(whole[:cut]) == ([["1"], ["2"], ["3"]] if cut else [[], [], []])
        else:
            with pytest.raises(SlurmParseError, match=r"x, line [12]"):
                columns(whole[:cut])

    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.tuples(*[st.text(st.characters(exclude_characters="\x1f\n"), max_size=8)] * 3), max_size=20))
    def test_whatever_holds_neither_separator_nor_newline_comes_back(self, rows):
        answer = "".join("".join(value + S for value in row) + "\n" for row in rows)
        assert columns(answer) == [[row[i] for row in rows] for i in range(3)]

    @pytest.mark.parametrize("block", [1, 5, 17, 1000])
    def test_a_long_answer_is_the_same_however_much_is_read_at_a_time(self, block, monkeypatch):
        monkeypatch.setattr(separated, "_BLOCK", block)
        rows = [[str(number), f"user{number % 3}", "\x1e" * (number % 5)] for number in range(50)]
        lines = ["".join(value + S for value in row) for row in rows]
        assert columns("\n".join(lines) + "\n") == [list(column) for column in zip(*rows, strict=True)]
        for wrong in (f"1{S}2{S}", f"1{S}2{S}3{S}4{S}", f"1{S}2\n{S}3{S}", f"1{S}2{S}\n3{S}", ""):
            found, misfits = separated.table("\n".join([*lines[:30], wrong, *lines[30:]]) + "\n", FIELDS, "x")
            assert [misfit.number for misfit in misfits] == [31, 32][: wrong.count("\n") + 1]
            assert found[0] == [row[0] for row in rows]

    def test_text_that_many_rows_share_is_kept_once(self):
        answer = "".join(f"{number}{S}user{number % 7}{S}{'normal'}{S}\n" for number in range(20_000))
        _, users, qos = columns(answer)
        assert (len(set(map(id, users))), len(set(map(id, qos)))) == (7, 1)


class TestRowsThatDoNotFit:
    """`table`: a row with a separator or a newline in a value costs itself; anything else is a format that is not
    known."""

    GOOD = f"1{S}2{S}3{S}\n"

    @pytest.mark.parametrize("bad", [f"7{S}8{S}9{S}0{S}\n", f"7{S}\n", "squeue: warning\n", f"7{S}a\nb{S}9{S}\n"])
    def test_a_row_that_does_not_fit_is_left_out_and_named(self, bad):
        for answer in (bad + self.GOOD * 4, self.GOOD * 2 + bad + self.GOOD * 2, self.GOOD * 4 + bad):
            found, wrong = separated.table(answer, FIELDS, "x")
            assert found == [["1"] * 4, ["2"] * 4, ["3"] * 4]
            assert [misfit.line + "\n" for misfit in wrong] == bad.splitlines(keepends=True)
            assert all(
                f"line {misfit.number}: {misfit.fields} fields instead of 3" in misfit.reason for misfit in wrong
            )

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
    def test_what_is_cut_short_or_does_not_fit_as_a_whole_is_an_error(self, answer):
        with pytest.raises(SlurmParseError, match="x, line "):
            separated.table(answer, FIELDS, "x")

    def test_a_single_row_with_a_separator_too_many_is_a_strange_row_also_when_it_is_all_there_is(self):
        found, (misfit,) = separated.table(f"7{S}8{S}9{S}0{S}\n", FIELDS, "x")
        assert (found, misfit.fields) == ([[], [], []], 4)

    @pytest.mark.parametrize(
        ("strange", "rows", "unknown"), [(0, 0, False), (3, 3, False), (4, 8, False), (4, 7, True), (5, 9, True)]
    )
    def test_more_than_half_of_the_rows_and_more_than_a_few_are_a_format(self, strange, rows, unknown):
        if not unknown:
            separated.refuse_unknown(["why"] * strange, rows)
            return
        with pytest.raises(SlurmParseError, match=f"why; likewise {strange - 1} more of {rows} rows"):
            separated.refuse_unknown(["why"] * strange, rows)


class TestNumbers:
    @pytest.mark.parametrize("text", [str(2**63), str(-(2**63) - 1), "9" * 19, "1" * 16, "-" + "1" * 16])
    def test_what_does_not_fit_into_64_bits_a_few_times_is_no_number(self, text):
        with pytest.raises(SlurmParseError, match="number"):
            notation.integer(text)

    @pytest.mark.parametrize(
        ("text", "value"), [("4", 4), ("4K", 4096), ("1-2", 1), ("1.50K", 1536), ("2M", 2**21), ("N/A", 0), ("", 0)]
    )
    def test_counts(self, text, value):
        assert notation.count(text) == value

    @pytest.mark.parametrize("text", ["-1", "x", "4X", "1e3", "٣", "99999999999999999999", "4P", "1-", "²"])
    def test_what_is_no_count_is_an_error(self, text):
        with pytest.raises(SlurmParseError, match="count"):
            notation.count(text)

    @pytest.mark.parametrize(
        ("text", "mib"),
        [
            ("4000M", 4000.0),
            ("62.50G", 64000.0),
            ("16Gn", 16384.0),
            ("16Gc", 16384.0),
            ("1T", 1048576.0),
            ("512K", 0.5),
            ("4000", 4000.0),
            ("0", 0.0),
            ("2g", 2048.0),
        ],
    )
    def test_memory_is_in_mib(self, text, mib):
        assert notation.memory(text) == mib

    @pytest.mark.parametrize("text", ["N/A", "(null)", ""])
    def test_memory_that_is_not_given_is_nan(self, text):
        assert math.isnan(notation.memory(text))


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("30:00", 1800),
            ("0:30", 30),
            ("30", 1800),
            ("1:02:03", 3723),
            ("1-00:00:00", 86400),
            ("2-3", 2 * 86400 + 3 * 3600),
            ("2-3:4", 2 * 86400 + 3 * 3600 + 240),
            ("365-23:59:59", 365 * 86400 + 86399),
            ("UNLIMITED", math.inf),
            ("INFINITE", math.inf),
        ],
    )
    def test_durations_are_in_seconds(self, text, seconds):
        assert notation.duration(text) == seconds

    @pytest.mark.parametrize("text", ["NOT_SET", "INVALID", "Partition_Limit", "N/A", ""])
    def test_a_duration_that_is_not_set_is_nan(self, text):
        assert math.isnan(notation.duration(text))

    @pytest.mark.parametrize("text", ["1:2:3:4", "-1", "1-2-3", "abc", "1:", ":1", "1 0"])
    def test_what_is_no_duration_is_an_error(self, text):
        with pytest.raises(SlurmParseError, match="time"):
            notation.duration(text)

    def test_time_stamps_are_epoch_seconds_or_nan(self):
        assert notation.epoch("1795242048") == 1795242048.0
        assert math.isnan(notation.epoch("N/A"))
        assert math.isnan(notation.epoch("Unknown"))

    @pytest.mark.parametrize("text", ["2026-11-21T06:20:48", "-1", "1.5", "9" * 13])
    def test_a_time_stamp_in_another_format_is_an_error(self, text):
        with pytest.raises(SlurmParseError, match="time stamp"):
            notation.epoch(text)


class TestGres:
    @pytest.mark.parametrize(
        ("text", "gpus"),
        [
            ("gpu:p100:4", {"p100": 4}),
            ("gres:gpu:p100:4", {"p100": 4}),
            ("gres/gpu:p100:4", {"p100": 4}),
            ("gres/gpu:k80=1", {"k80": 1}),
            ("gres/gpu=8", {"": 8}),
            ("gres/gpu", {"": 1}),
            ("gpu", {"": 1}),
            ("gpu:2", {"": 2}),
            ("gpu:k80", {"k80": 1}),
            ("gpu:2(S:0-1)", {"": 2}),
            ("gpu:p100:4(S:0,2-3),gpu:k80:2(S:1)", {"p100": 4, "k80": 2}),
            ("gpu:p100:2(IDX:0-1)", {"p100": 2}),
            ("gpu:A100:2,gpu:a100:1", {"a100": 3}),
            ("gres/gpu:A100=2", {"a100": 2}),
            ("gpu:p100:0(IDX:N/A)", {"p100": 0}),
            ("gpu(null):2", {"": 2}),
            # untyped GPUs whose cores are known (22.05, 24.11)
            ("gpu:(null):2(IDX:0-1)", {"": 2}),
            ("gpu:(null):0(IDX:N/A)", {"": 0}),
            ("gpu:(null):1(IDX:0),shard:(null):3(3/4,0/4)", {"": 1}),
            ("gpu:2(S:0-1),nic:1(S:0)", {"": 2}),
            ("gpu:p100:no_consume:4", {"p100": 4}),
            ("gpu:no_consume:4", {"": 4}),
            # what real types look like
            ("gpu:a100+:2", {"a100+": 2}),
            ("gpu:1g.10gb:7", {"1g.10gb": 7}),
            ("gpu:1g.10gb+me:1(IDX:0)", {"1g.10gb+me": 1}),
            (
                "gpu:nvidia_a100_1g.5gb:7(S:0),gpu:nvidia_a100_2g.10gb:3(S:1)",
                {"nvidia_a100_1g.5gb": 7, "nvidia_a100_2g.10gb": 3},
            ),
            ("gpu:tesla_v100-sxm2-16gb:4(S:0-1)", {"tesla_v100-sxm2-16gb": 4}),
            ("gpu:1080:4", {"1080": 4}),
            ("gpu:h100/2@x#é'\"$:1", {"h100/2@x#é'\"$": 1}),
            ("gres/gpu:1g.10gb", {"1g.10gb": 1}),
            ("gres/gpu:2,gres/gpu:2", {"": 4}),
            ("cpu=4,gres/gpu:k80=1", {"k80": 1}),
            ("cpu=4", {}),
            ("gres/shard:8,gpu:1", {"": 1}),
            ("license/matlab@server:2", {}),
            ("(null)", {}),
            ("N/A", {}),
            ("", {}),
        ],
    )
    def test_every_spelling(self, text, gpus):
        assert notation.gres(text) == gpus

    @pytest.mark.parametrize(
        "text",
        [
            "gpu:",
            "gpu:a:b",
            "gpu:a:b:c:d",
            "gpu:a:b:4",
            "gpu:(",
            "gpu:a:-1",
            "gpu:a b:1",
            ",",
            "gpu=1=2",
            "gpu:a\x1b[31m:1",
            "gpu:2147483647,gpu:2147483647",
        ],
    )
    def test_a_gpu_request_that_cannot_be_counted_is_an_error(self, text):
        with pytest.raises(SlurmParseError, match=r"GRES|count"):
            notation.gres(text)


class TestGpusOfANode:
    """What is in use must not seem free, however differently slurm.conf and gres.conf name it."""

    LINE = (
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
    def test_gpus_in_use_are_counted_by_the_types_of_the_node(self, gres, used, configured, alloc):
        node = listings.nodes(self.LINE.format(gres, used))[0][0]
        assert (dict(node.gpus), dict(node.gpus_alloc)) == (configured, alloc)


class TestTres:
    def test_a_whole_list(self):
        found = notation.tres("cpu=4,mem=62.50G,node=2,billing=4,gres/gpu=8,gres/gpu:p100=8,license/x@y=1,bb/z=1G")
        assert (found.cpu, found.mem, found.node, found.gpus) == (4, 64000.0, 2, 8)
        assert found.gpu_types == (("p100", 8),)

    def test_names_are_compared_without_case_as_slurm_does(self):
        found = notation.tres("CPU=4,gres/GPU=3,gres/gpu:A100=2,gres/gpu:a100=1")
        assert (found.cpu, found.gpus, found.gpu_types) == (4, 3, (("a100", 3),))

    def test_gpus_are_unknown_when_they_are_not_tracked(self):
        assert notation.tres("cpu=4,node=1").gpus is None
        assert notation.tres("N/A").gpus is None

    def test_types_without_a_total_add_up(self):
        assert notation.tres("gres/gpu:a=2,gres/gpu:b=3").gpus == 5

    @pytest.mark.parametrize("text", ["cpu", "cpu=", "mem=x", "gres/gpu=-1", ",", "cpu=4,,node=1"])
    def test_what_is_no_list_is_an_error(self, text):
        if text == "cpu=":
            assert notation.tres(text).cpu == 0
        else:
            with pytest.raises(SlurmParseError):
                notation.tres(text)


class TestArrays:
    @pytest.mark.parametrize(
        ("text", "tasks"),
        [
            ("6_[1-20%5]", 20),
            ("[1-20%5]", 20),
            ("1-20%5", 20),
            ("6_[1,3-5]", 4),
            ("6_[1-20:4]", 5),
            ("6_7", 1),
            ("7", 1),
            ("0-0", 1),
            ("1-99:7", 15),
            ("1,3,5,...", 3),
            ("1,3,5...", 3),
            ("N/A", 0),
        ],
    )
    def test_tasks_are_counted(self, text, tasks):
        assert notation.array_tasks(text) == tasks

    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            *(("6_[1-20%5]", 5), ("1-20%5", 5), ("1,3-5%1", 1)),
            *(
                (text, 0)
                for text in ("6_[1-20]", "1-20", "7", "N/A", "1-20%", "1-20%x", "1-2%1234567890", "1-2%\u0665")
            ),
        ],
    )
    def test_how_many_tasks_may_run_at_a_time(self, text, limit):
        assert notation.array_limit(text) == limit

    @pytest.mark.parametrize("text", ["5-1", "1-5:0", "a", "1,,2", "...,1", "1-2-3", "_"])
    def test_what_is_no_expression_is_an_error(self, text):
        with pytest.raises(SlurmParseError, match="array tasks"):
            notation.array_tasks(text)

    def test_dependencies(self):
        assert notation.is_given("afterok:12(unfulfilled)")
        assert notation.is_given("singleton(unfulfilled)")
        assert not notation.is_given("(null)")


class TestNodeStates:
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
    def test_only_known_good_states_are_usable(self, states, usable):
        for text in states.split():
            assert listings.node_state(text).usable is usable, text

    def test_a_node_that_takes_no_job_for_a_while_counts_in_a_replay_and_one_that_is_broken_does_not(self):
        for text in (
            "IDLE+RESERVED",
            "IDLE+MAINTENANCE+RESERVED",
            "IDLE$",
            "MIXED+BLOCKED",
            "IDLE%",
            "MIXED+POWER_DOWN",
        ):
            assert listings.node_state(text).counts, text
        for text in ("IDLE+DRAIN", "DOWN", "IDLE*", "IDLE+RESERVED+DRAIN", "IDLE+FAIL", "IDLE+SOMETHING_NEW", "FUTURE"):
            assert not listings.node_state(text).counts, text

    def test_suffixes_and_flags_are_the_same_thing(self):
        assert listings.node_state("IDLE*+DRAIN").flags == {"NOT_RESPONDING", "DRAIN"}
        assert listings.node_state("idle*").flags == listings.node_state("IDLE+NOT_RESPONDING").flags

    @pytest.mark.parametrize("text", ["", "IDLE DRAIN", "+DRAIN", "IDLE+", "1", "IDLE&"])
    def test_what_is_no_state_is_an_error(self, text):
        with pytest.raises(SlurmParseError, match="node state"):
            listings.node_state(text)

    def test_a_node_that_has_to_come_up_first_is_asleep(self):
        for text in ("IDLE+CLOUD+POWERED_DOWN", "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", "idle~"):
            assert listings.node_state(text).asleep
        assert not any(listings.node_state(text).asleep for text in ("IDLE+CLOUD", "IDLE"))


class TestNodes:
    def test_capacity_use_and_state(self):
        first, second = listings.nodes(NODES)[0]
        assert (first.name, first.cpus, first.cpus_alloc, first.mem, first.mem_alloc, first.tmp) == (
            "p100-1",
            56,
            4,
            256000.0,
            4000.0,
            900.0,
        )
        assert (first.gpus, first.gpus_alloc, first.features) == ({"p100": 4}, {"p100": 2}, {"p100", "gpu"})
        assert first.state.usable
        assert (second.gpus, second.gpus_alloc, second.state.usable) == ({"k80": 2}, {"k80": 0}, False)

    def test_a_comment_with_newlines_is_passed_over_unless_it_imitates_a_node(self):
        nodes, strange = listings.nodes(NODES + "more words\n\n")
        assert (len(nodes), strange) == (2, [])
        # Which of the two lines is true nobody knows: the node is there, and of no use.
        nodes, strange = listings.nodes(
            NODES + NODES.split("\n", maxsplit=1)[0].replace("gpu:p100:4", "gpu:p100:8") + "\n"
        )
        assert [(node.name, node.state.usable, node.cpus) for node in nodes] == [
            ("p100-1", False, 0),
            ("k80-1", False, 28),
        ]
        (row,) = strange
        assert (row.kind, row.name) == (RowKind.NODE, "p100-1")
        assert "line 3: node 'p100-1' appears twice" in row.reason

    def test_specialised_cores_and_memory_are_not_for_jobs(self):
        line = NODES.split("\n", maxsplit=1)[0].replace("CPUEfctv=56", "CPUEfctv=54") + "\n"
        line = line.replace("Sockets=2", "MemSpecLimit=1000 Sockets=2")
        node = listings.nodes(line)[0][0]
        assert (node.cpus, node.mem) == (54, 255000.0)

    def test_without_gres_used_allocated_tres_count(self):
        line = NODES.split("\n", maxsplit=1)[0].replace("GresUsed=gpu:p100:2(IDX:0-1) ", "")
        assert listings.nodes(line + "\n")[0][0].gpus_alloc == {"p100": 2}
        assert listings.nodes(line + ",gres/gpu:p100=2\n")[0][0].gpus_alloc == {"p100": 2}


class TestPartitions:
    def test_a_partition(self):
        gpu, share = listings.partitions(PARTITIONS)[0]
        assert (gpu.nodes, share.nodes) == (["k80-1", "p100-1"], ["p100-1"])
        gpu, share = gpu.partition, share.partition
        assert (gpu.name, gpu.up, gpu.priority_tier, gpu.default) == ("gpu", True, 1, True)
        assert (gpu.oversubscribe, gpu.oversubscribe_count, gpu.max_time, gpu.max_nodes) == (
            "NO",
            1,
            604800.0,
            math.inf,
        )
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
    def test_a_partition_that_cannot_be_understood_is_not_up_and_of_no_tier(self, answer, name, complaint):
        partitions, (row,) = listings.partitions(answer)
        assert (row.kind, row.name) == (RowKind.PARTITION, name)
        assert complaint in row.reason
        found = {line.partition.name: line for line in partitions}
        assert (found[name].partition.up, found[name].partition.priority_tier, found[name].understood) == (
            False,
            -1,
            False,
        )
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


class TestTheRest:
    def test_configuration(self):
        found = controller.config(CONFIG)
        assert found["PriorityType"] == "priority/multifactor"
        assert found["PrioritySiteFactorPlugin"] == ""
        assert not any(" " in key for key in found)

    @pytest.mark.parametrize("answer", ["", "x", "x\n", CONFIG.replace("ClusterName", "Other"), CONFIG[:-1]])
    def test_what_is_no_configuration_is_an_error(self, answer):
        with pytest.raises(SlurmParseError, match="show config"):
            controller.config(answer)

    def test_parameters(self):
        assert controller.parameters("a,b=1,c=x=y") == {"a": "", "b": "1", "c": "x=y"}
        assert controller.parameters("(null)") == {}

    def test_durations_of_the_configuration(self):
        assert controller.config_seconds("30 sec") == 30.0
        assert controller.config_seconds("00:01:00") == 60.0

    @pytest.mark.parametrize(
        ("text", "release"),
        [("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 24.11.5-1\n", (24, 11)), ("26.05.0rc1", (26, 5))],
    )
    def test_versions(self, text, release):
        assert controller.version(text)[1] == release

    def test_what_is_no_version_is_an_error(self):
        with pytest.raises(SlurmParseError, match="version"):
            controller.version("slurm 24\n")

    def test_diagnostics(self):
        found = controller.diagnostics(DIAGNOSTICS)
        assert found.health == Health(7, 3, 14664, since=1795241740)

    def test_what_is_no_diagnostics_is_an_error(self):
        with pytest.raises(SlurmParseError, match="sdiag"):
            controller.diagnostics("hello\n")

    def test_a_controller_is_up_only_when_it_says_so(self):
        assert controller.controllers("Slurmctld(primary) at ctl is UP\n") == [("ctl", True)]
        assert controller.controllers("Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n") == [
            ("a", False),
            ("b", True),
        ]
        assert controller.controllers("") == []


TOTAL = [
    notation.integer,
    notation.job_id,
    notation.count,
    notation.memory,
    notation.duration,
    notation.epoch,
    notation.tres,
    notation.gres,
    notation.array_tasks,
    notation.array_limit,
    notation.is_given,
    listings.node_state,
    listings.nodes,
    listings.partitions,
    controller.config,
    controller.parameters,
    controller.config_seconds,
    controller.version,
    controller.diagnostics,
    controller.controllers,
    notation.text,
    notation.tres_terms,
    notation.moment,
    notation.named_job,
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
