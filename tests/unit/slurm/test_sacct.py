"""Jobs that have ended, as sacct tells: what is understood, what is left out, what is refused."""

import math
import re
from pathlib import Path

import pytest
from unit.slurm.standin import RECORDED, releases

from rltuned.core.config import SlurmSection
from rltuned.core.ended import FINAL_STATES, EndedJob
from rltuned.core.errors import SlurmParseError, SlurmUnavailableError
from rltuned.simulate.workload.readers import read
from rltuned.slurm.commands import ENDED_FIELDS, HISTORY_BYTES, REGISTRY, SEPARATOR, TRACE_BYTES, TRACE_FIELDS
from rltuned.slurm.connect import open_reader
from rltuned.slurm.port import HistoryReader
from rltuned.slurm.sacct import Outage, ended_jobs, read_outages, read_trace, trace_header, trace_lines

_JOB = (
    "JobIDRaw=7 User=alice Account=physics Partition=gpu State=COMPLETED End=1795255155 ElapsedRaw=387 TimelimitRaw=30 "
    "ReqTRES=billing=1,cpu=1,gres/gpu=2,mem=100M,node=1 "
    "AllocTRES=billing=1,cpu=1,gres/gpu:k80=2,gres/gpu=2,mem=100M,node=1 "
    "QOS=normal Submit=1795250000 Eligible=1795250100 Start=1795254768 NNodes=1"
)
JOB = dict(word.split("=", 1) for word in _JOB.split())


def said(*jobs, fields=ENDED_FIELDS):
    assert all(not set(job) - set(fields) for job in jobs)
    return "".join("".join(f"{ {**JOB, **job}[field] }{SEPARATOR}" for field in fields) + "\n" for job in jobs)


def traced(**values):
    return said(values, fields=TRACE_FIELDS)


@pytest.fixture
def workload(tmp_path):
    """A trace of the accounting, read as a workload."""

    def read_back(answer):
        path = tmp_path / "t.sacct"
        path.write_text("\n".join([trace_header(), *trace_lines(answer, 0.0, 1e11).lines]) + "\n")
        return read(path)

    return read_back


def test_a_finished_job_is_understood():
    assert ended_jobs(said({})).jobs == [EndedJob(7, "alice", "physics", "gpu", 2, 1800.0, 387.0, 1795255155.0, 1)]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("30", 1800.0), ("UNLIMITED", math.inf), ("Partition_Limit", math.nan), ("", math.nan), ("1-00:00:00", 86400.0)],
)
def test_limits_are_minutes_or_words(value, seconds):
    assert ended_jobs(said({"TimelimitRaw": value})).jobs[0].time_limit == pytest.approx(seconds, nan_ok=True)


def test_gpus_and_cpus_are_what_was_asked_for_and_not_all_of_nodes_that_it_had_to_itself():
    whole = "billing=28,cpu=28,gres/gpu:k80=4,gres/gpu=4,mem=28000M,node=1"
    asked = ({"AllocTRES": whole}, {"AllocTRES": whole, "ReqTRES": "billing=2,cpu=2,mem=2000M,node=1"})
    unknown = ({"AllocTRES": whole, "ReqTRES": ""}, {"AllocTRES": "", "ReqTRES": ""})
    jobs = ended_jobs(said(*asked, *unknown)).jobs
    assert [(job.gpus, job.cpus) for job in jobs] == [(2, 1), (0, 2), (4, 28), (0, 0)]


def test_a_job_that_was_cancelled_before_it_ran_or_has_no_end_says_nothing_and_is_told_apart(slurm):
    cancelled = {"State": "CANCELLED by 2001", "ElapsedRaw": "0"}
    rows = {**cancelled, "JobIDRaw": "8"}, {**cancelled, "JobIDRaw": "9", "ElapsedRaw": "5"}, {}
    past = ended_jobs(said(*rows, {**cancelled, "JobIDRaw": "1" * 5000}))  # the last one costs itself
    assert (past.cancelled, [job.job_id for job in past.jobs]) == ([8], [7, 9])
    assert ended_jobs(said({"End": "Unknown"})).jobs == []


def test_they_come_in_order_of_their_ends():
    rows = [{"End": end, "JobIDRaw": job} for end, job in (("300", "1"), ("100", "2"), ("300", "0"))]
    assert [(job.end, job.job_id) for job in ended_jobs(said(*rows)).jobs] == [(100.0, 2), (300.0, 0), (300.0, 1)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("ElapsedRaw", "-5"), ("ElapsedRaw", "soon"), ("End", "2026-01-01")),
        *(("TimelimitRaw", "x"), ("AllocTRES", "gpu"), ("JobIDRaw", "7_1")),
    ],
)
def test_what_cannot_be_understood_names_job_and_column(column, value):
    broken = {column: value} | ({} if column == "JobIDRaw" else {"JobIDRaw": "8"})
    past = ended_jobs(said({}, broken, {"JobIDRaw": "9"}))
    assert [job.job_id for job in past.jobs] == [7, 9]
    (reason,) = past.left_out
    assert re.match(rf"sacct, job .*, column {column}", reason)
    with pytest.raises(SlurmParseError, match=rf"sacct, job .*, column {column}"):  # none at all can be understood
        ended_jobs(said(broken, broken))


def test_a_name_that_holds_the_separator_or_a_newline_costs_its_own_row_only():
    past = ended_jobs(
        said({}, {"Account": f"us{SEPARATOR}x"}, {"JobIDRaw": "8"}, {"Account": "a\nb"}, {"JobIDRaw": "9"})
    )
    assert [job.job_id for job in past.jobs] == [7, 8, 9]
    assert past.left_out[0] == "sacct, line 2: 11 fields instead of 10"
    assert [reason[:13] for reason in past.left_out] == ["sacct, line 2", "sacct, line 4", "sacct, line 5"]


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_truncated_answer_is_an_error_and_not_fewer_jobs(cut):
    with pytest.raises(SlurmParseError, match="sacct"):
        ended_jobs(said({}, {})[:-cut])


@pytest.mark.parametrize("release", releases())
def test_recorded_answers_of_real_clusters_are_understood(release):
    text = (RECORDED / release / "history.txt").read_text()
    jobs, left_out, cancelled = ended_jobs(text)
    assert left_out == []
    never_ran = sum(
        line.split(SEPARATOR)[4].startswith("CANCELLED") and line.split(SEPARATOR)[6] == "0"
        for line in text.splitlines()
    )
    assert len(cancelled) == never_ran
    assert len(jobs) == text.count("\n") - never_ran > 200
    assert {job.user for job in jobs} <= {"alice", "bob", "carol", "dave"}
    assert {job.gpus for job in jobs} >= {0, 1, 2, 4}
    assert all(job.run_time >= 0 and job.end > 1.7e9 and job.time_limit >= 60 for job in jobs)


def test_the_reader_asks_for_the_stretch_in_utc_and_drops_what_is_outside(slurm):
    slurm.answer("history", said({"End": "1000"}, {"End": "1500"}, {"End": "2000"}))
    reader = open_reader(SlurmSection(bin_dir=slurm.bin_dir))
    assert isinstance(reader, HistoryReader)
    assert [job.end for job in reader.ended(1000.0, 2000.0).jobs] == [1000.0, 1500.0]
    assert "--starttime=1970-01-01T00:16:39 --endtime=1970-01-01T00:33:21" in slurm.calls[-1]


def test_a_cluster_without_accounting_is_unavailable(slurm):
    slurm.answer("history", stderr="Slurm accounting storage is disabled\n", code=1)
    with pytest.raises(SlurmUnavailableError, match="accounting storage is disabled"):
        open_reader(SlurmSection(bin_dir=slurm.bin_dir)).ended(0.0, 10.0)


def test_an_answer_beyond_its_limit_is_refused(slurm):
    slurm.script("sacct", f"#!/bin/sh\nhead -c {HISTORY_BYTES + 1} /dev/zero\n")
    with pytest.raises(SlurmParseError, match=f"longer than {HISTORY_BYTES} bytes"):
        open_reader(SlurmSection(bin_dir=slurm.bin_dir)).ended(0.0, 10.0)


def test_of_a_stretch_of_which_there_is_too_much_to_tell_parts_are_asked_for_down_to_a_minute(slurm):
    """sacct tells of a job each second; what it has to tell of more than five minutes is longer than its limit."""
    rows = {read: (slurm.folder / read).as_posix() for read in ("history", "trace")}
    Path(rows["history"]).write_text(said(*({"JobIDRaw": str(at), "End": str(at)} for at in range(1, 3601))))
    Path(rows["trace"]).write_text("".join(traced(JobIDRaw=str(at), End=str(at)) for at in range(1, 3601)))
    slurm.script(
        "sacct",
        f"""#!/usr/bin/python3
import sys
from datetime import datetime
first, last = (datetime.fromisoformat(word.split("=")[1] + "+00:00").timestamp() for word in sys.argv[-2:])
if last - first > 310:
    sys.stdout.write("x" * {TRACE_BYTES + 1})
else:
    trace = any("NNodes" in word for word in sys.argv)
    for at, line in enumerate(open({rows["trace"]!r} if trace else {rows["history"]!r}), start=1):
        if first <= at <= last:
            sys.stdout.write(line)
""",
    )
    past = open_reader(SlurmSection(bin_dir=slurm.bin_dir)).ended(1.0, 3601.0)
    assert [job.job_id for job in past.jobs] == list(range(1, 3601)), "each once, in order of their ends"
    assert past.left_out == []
    found = read_trace(slurm.runner(), 1.0, 3601.0)
    assert [int(line.partition("|")[0]) for line in found.lines] == list(range(1, 3601))


def test_a_trace_of_the_accounting_is_read_as_a_workload(workload):
    asks = "cpu=1,gres/gpu:k80=4,mem=100M,node=1"
    jobs = workload(traced() + traced(JobIDRaw="8", Eligible="1795250040", ReqTRES=asks))
    assert jobs.source.form == "sacct"
    assert jobs.job_id.tolist() == [8, 7]
    assert jobs.submit_time.tolist() == [0.0, 60.0], "a job counts from when it could have run"
    assert jobs.gpus.tolist() == [4, 2]
    assert jobs.run_time.tolist() == [387.0, 387.0]
    assert jobs.time_limit.tolist() == [1800.0, 1800.0]
    assert jobs.gpu_type.texts() == ["k80", ""]


def test_a_trace_holds_each_job_once_in_the_stretch_that_it_ended_in():
    answer = traced(End="100") + traced(End="200")
    assert len(trace_lines(answer, 100.0, 200.0).lines) == len(trace_lines(answer, 200.0, 300.0).lines) == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"End": "soon"}, "job '7', column End"),
        ({"Account": "a|b"}, "job '7': a value holds '|'"),
        ({"Account": f"a{SEPARATOR}b"}, "line 2: "),
    ],
)
def test_a_row_that_could_be_misread_is_left_out_of_a_trace_and_said(values, said):
    good = traced(JobIDRaw="8")
    rows = trace_lines(good + traced(**values) + good, 0.0, 1e11)
    assert rows.lines == trace_lines(good + good, 0.0, 1e11).lines
    assert len(rows.left_out) == 1
    assert said in rows.left_out[0]
    with pytest.raises(SlurmParseError):
        trace_lines(good[:-5], 0.0, 1e11)


@pytest.mark.parametrize("release", releases())
def test_when_nodes_were_out_of_use_is_understood(slurm, release):
    told = (RECORDED / release / "events.txt").read_text()
    slurm.answer("events", told + "k80-1|DOWN|soon|1795820177\nk80-1|DOWN|Unknown|Unknown\nk80-1\n")
    (down, drained) = sorted(read_outages(slurm.runner(), 1e9))
    assert (down.node, down.end - down.start) == ("k80-1", 7.0)
    assert drained == Outage("p100-2", down.start, math.inf)
    assert slurm.calls[-1].endswith(" Start=2001-09-09T01:46:40")


@pytest.mark.parametrize("state", FINAL_STATES)
def test_every_final_state_is_load_and_only_ends_of_a_jobs_own_say_how_long_such_jobs_run(state, workload):
    asked = {}
    for command in ("history", "trace"):
        (states,) = (word for word in REGISTRY[command].arguments if word.startswith("--state="))
        asked[command] = states.removeprefix("--state=").split(",")
        assert "--duplicates" in REGISTRY[command].arguments, "each run of a job that was requeued"
    assert asked["trace"] == list(FINAL_STATES)
    cluster_did = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REQUEUED", "RESIZING", "REVOKED")
    assert (state in asked["history"]) == (state not in cluster_did)
    # One that ran, and one that has ended in the queue: releases differ in what they print as its start.
    jobs = workload(traced(State=state) + traced(State=state, JobIDRaw="8", ElapsedRaw="0", Start="1795255155"))
    waited_only = state in {"CANCELLED", "DEADLINE", "REVOKED"}
    assert jobs.job_id.tolist() == ([7] if waited_only else [7, 8])
    assert float((jobs.run_time * jobs.gpus).sum()) == 387.0 * 2
    past = ended_jobs(said({"State": state, "ElapsedRaw": "0"}))
    assert (past.cancelled == [7]) == waited_only


@pytest.mark.parametrize("state", ["RUNNING", "STAGE_OUT", "SIGNALING", "EXPEDITING"])
def test_where_a_trace_has_no_ends_whatever_is_no_final_state_has_not_ended(tmp_path, state):
    path = tmp_path / "t.sacct"
    row = "{}|u|2026-11-20T10:00:00|60|cpu=1,gres/gpu=1|{}"
    rows = (row.format(7, "CANCELLED by 1000"), row.format(8, state))
    path.write_text("\n".join(["JobID|User|Submit|ElapsedRaw|ReqTRES|State", *rows]) + "\n")
    assert read(path).job_id.tolist() == [7]


def test_of_a_job_that_ran_several_times_the_last_run_has_its_id_and_no_other_job_loses_its_own(workload):
    answer = traced(State="PREEMPTED", ElapsedRaw="60", Eligible="1795250000")
    answer += traced(JobIDRaw="9") + traced(Submit="1795253000", Eligible="1795253000", ElapsedRaw="500")
    jobs = workload(answer)
    assert dict(zip(jobs.job_id.tolist(), jobs.run_time.tolist(), strict=True)) == {10: 60.0, 9: 387.0, 7: 500.0}
