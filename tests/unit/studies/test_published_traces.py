"""Published traces: what becomes of each column, and where and why a wrong line is wrong."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.workload.trace_files import (
    at_line,
    damaged_file_is_read_or_refused_by_name,
    texts,
    write,
    wrong_line_is_named_or_counted,
)

from rltuned.core.errors import WorkloadError
from rltuned.core.tables import Category
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.readers import read as read_own
from studies.traces import philly, read

SWF = (
    "; Version: 2.2\n; Queue: 1 fast\n1 100 5 10 4 -1 -1 8 100 2048 1 3 4 -1 1 -1 -1 -1\n"
    "2 107 -1 20 -1 -1 -1 2 -1 -1 0 5 4 -1 7 -1 -1 -1\n"
)
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1425511,uXBbc,vcJkd,1,2,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:05,2020-06-10 04:55:13,36848,4\n"
    "1425512,uVMrF,vchbv,0,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n"
)
PAI = (
    "j1,worker,2.0,Terminated,100.0,200.0,600.0,29.296875,50.0,MISC\n"
    "j2,worker,1.0,Running,100.0,,600.0,29.3,100.0,T4\n"
    "j3,ps,3,Failed,100,150,50.0,1,,\n"
)
PAI_JOBS = (
    "job_name,inst_id,user,status,start_time,end_time\n"
    "j1,i1,alice,Terminated,90.0,200.0\n"
    "j3,i3,bob,Failed,120.0,150.0\n"
)


def philly_job(number: int, **changes) -> dict:
    job = {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": f"application_1506638472019_{number}",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:23",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}, {"ip": "m48", "gpus": ["gpu0", "gpu1"]}],
            },
            {"start_time": "2017-10-07 01:13:30", "end_time": "2017-10-07 02:12:09", "detail": []},
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    }
    return job | changes


def read_text(tmp_path: Path, data: str, **options) -> Workload:
    return read(write(tmp_path, data), **options)


def shown(jobs: Workload, **expected) -> dict:
    """The columns that are expected, None where a number is not known; `start`, `form` and `left_out` of the source."""
    found = {}
    for name in expected:
        value = getattr(jobs, name, None) if hasattr(jobs, name) else getattr(jobs.source, name)
        if isinstance(value, Category):
            value = texts(value)
        elif isinstance(value, np.ndarray):
            value = [None if math.isnan(one) else one for one in value.tolist()]
        found[name] = value
    return found


def has(jobs: Workload, **expected) -> None:
    assert shown(jobs, **expected) == expected


@pytest.mark.parametrize("text", [SWF, HELIOS, PAI])
def test_what_is_converted_reads_back_as_the_same_jobs(tmp_path, text):
    path, out = write(tmp_path, text), tmp_path / "out.csv.gz"
    subprocess.run([sys.executable, "-m", "studies.traces", path, out], check=True)
    jobs, again = read(path), read_own(out)
    columns = ("submit_time", "run_time", "gpus", "job_id", "nodes", "cpus", "mem", "time_limit", "wait_time")
    every = dict.fromkeys((*columns, "user", "account", "partition", "gpu_type", "start"))
    assert shown(again, **every) == shown(jobs, **every)


def test_swf_processors_stand_for_gpus(tmp_path):
    has(
        read_text(tmp_path, SWF),
        job_id=[1, 2],
        submit_time=[0, 7],
        start=100,
        gpus=[4, 2],
        wait_time=[5, None],
        time_limit=[100, None],
        mem=[8, 0],
        user=["3", "5"],
        account=["4", "4"],
        partition=["fast", "7"],
        line=[3, 4],
    )


def test_swf_leaves_out_parts_of_jobs_and_jobs_that_never_ran(tmp_path):
    line = "1 0 5 10 4 -1 -1 4 100 -1 1 3 4 -1 1 -1 -1 -1\n"
    part, cancelled = line.replace(" 1 3 4 ", " 2 3 4 "), line.replace(" 10 4 -1 -1 4 ", " 0 0 -1 -1 -1 ")
    has(read_text(tmp_path, line + part + cancelled), job_id=[1], left_out=2)


def test_helios_keeps_cpu_jobs(tmp_path):
    has(
        read_text(tmp_path, HELIOS),
        form="helios",
        start=1_591_728_061,
        submit_time=[0, 26],
        run_time=[36_848, 249],
        wait_time=[4, 0],
        gpus=[1, 0],
        cpus=[2, 16],
        nodes=[1, 1],
        partition=["vcJkd", "vchbv"],
    )


def test_pai_counts_whole_gpus_of_each_instance(tmp_path):
    expected = {"gpus": [2, 0], "cpus": [12, 2], "mem": [60_000, 3072], "gpu_type": ["misc", ""]}
    has(read_text(tmp_path, PAI), form="pai", left_out=1, run_time=[100, 50], **expected)
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    has(read_text(tmp_path, header + PAI), gpus=[2, 0])


def test_the_job_table_of_pai_has_users_and_submissions(tmp_path):
    table = write(tmp_path, PAI_JOBS, "jobs")
    # The second one was submitted after it started: only the start is believed.
    jobs = read_text(tmp_path, PAI, job_table=table)
    has(jobs, submit_time=[0, 10], user=["alice", "bob"], wait_time=[10, None])
    with pytest.raises(WorkloadError, match=r"jobs:2: start_time: 'x' is not a number"):
        read_text(tmp_path, PAI, job_table=write(tmp_path, PAI_JOBS.replace("90.0", "x"), "jobs"))
    with pytest.raises(WorkloadError, match="goes with the format pai"):
        read_text(tmp_path, SWF, job_table=table)
    with pytest.raises(WorkloadError, match="this is pai_job_table"):
        read(table)


@pytest.mark.parametrize("indent", [4, None])
def test_philly_runs_from_the_first_attempt_to_the_last(tmp_path, indent):
    never = philly_job(2, attempts=[])
    going = philly_job(3, attempts=[{"start_time": "2017-10-07 01:12:09", "end_time": None, "detail": []}])
    jobs = read_text(tmp_path, json.dumps([philly_job(1), never, going], indent=indent))
    has(jobs, form="philly", left_out=2, run_time=[3600], wait_time=[30], gpus=[4])
    has(jobs, user=["ce2f4c"], partition=["ee9e8c"])


def test_philly_objects_go_across_the_blocks_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(philly, "BLOCK", 97)
    monkeypatch.setattr(philly, "BATCH", 3)
    users = [f"u\u00e9{number}" for number in range(20)]
    made = [philly_job(number, user=user) for number, user in enumerate(users)]
    text = json.dumps(made, indent=2, ensure_ascii=False)
    jobs = read_text(tmp_path, text)
    has(jobs, user=users)
    assert [text.splitlines()[line - 1] for line in jobs.line.tolist()] == ["  {"] * 20


BAD_LINES = [
    (SWF, 3, " -1 -1 -1\n", "\n", "15 fields instead of 18"),
    (SWF, 4, " 20 ", " ten ", "run time: 'ten' is not a number"),
    (SWF, 4, " 2 -1 -1 0", " 0 -1 -1 0", "allocated processors and requested processors: the job ran, and neither"),
    (SWF, 4, "107", "-107", "submit time: -107 is below 0"),
    (
        HELIOS,
        3,
        "06-09 18:41:27",
        "06-31 18:41:27",
        "submit_time: '2020-06-31 18:41:27' is no time: day is out of range",
    ),
    (HELIOS, 2, "2020-06-09 18:41:01", "", "submit_time: is not known"),
    (HELIOS, 2, "36848", "-5", "duration: -5 is below 0"),
    (HELIOS, 2, ",4\n", "\n", "11 fields instead of 12"),
    (PAI, 3, ",3,", ",x,", "inst_num: 'x' is not a number"),
    (PAI, 3, "150", "50", "task: ends 50 s before it starts"),
    (PAI, 1, "50.0", "1e9", "plan_gpu: '1e9' is above 1,000,000"),
]


@pytest.mark.parametrize(("text", "number", "old", "new", "reason"), BAD_LINES)
def test_a_wrong_line_is_named_or_counted(tmp_path, text, number, old, new, reason):
    wrong_line_is_named_or_counted(read, tmp_path, text, number, at_line(text, number, old, new), reason)


BACKWARDS = {"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:12:00", "detail": [{"gpus": ["g"]}]}
BAD_JOBS = [
    ({"submitted_time": "October"}, "submitted_time: 'October' is no time such as"),
    ({"submitted_time": 5}, "submitted_time: expected a text, not 5"),
    ({"attempts": "none"}, "attempts: expected a list of objects"),
    ({"attempts": [{"detail": [{"ip": "m1"}]}]}, "detail: a machine without its list of gpus"),
    ({"attempts": [BACKWARDS]}, "the last attempt ends 9 s before the first starts"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_JOBS, ids=[reason for _, reason in BAD_JOBS])
def test_a_wrong_job_of_philly_is_named_or_counted(tmp_path, change, reason):
    three = (philly_job(1), philly_job(2, **change), philly_job(3))
    path = write(tmp_path, "[\n" + ",\n".join(map(json.dumps, three)) + "\n]\n")
    with pytest.raises(WorkloadError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:3: {reason}")
    jobs = read(path, skip_bad=True)
    assert (jobs.source.skipped, jobs.line.tolist()) == (1, [2, 4])


def test_broken_json_is_named_with_its_line_and_reading_goes_on_at_the_next_job(tmp_path):
    text = json.dumps([philly_job(number) for number in range(3)], indent=4)
    broken = text.splitlines()
    first = [number for number, line in enumerate(broken) if '"vc"' in line][1]
    broken[first] = broken[first].replace('"ee9e8c"', "ee9e8c")
    path = write(tmp_path, "\n".join(broken))
    with pytest.raises(WorkloadError, match=rf"trace:{first + 1}: not JSON: Expecting value"):
        read(path)
    jobs = read(path, skip_bad=True)
    assert (len(jobs), jobs.source.skipped) == (2, 1)


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_truncated_list_is_named(tmp_path, cut):
    text = json.dumps([philly_job(1), philly_job(2)], indent=1)
    path = write(tmp_path, text[:-cut])
    with pytest.raises(WorkloadError, match=r"trace:\d+: .*truncated"):
        read(path)
    assert read(path, skip_bad=True).source.skipped == 1


def test_text_after_the_list_is_named(tmp_path):
    with pytest.raises(WorkloadError, match=r"trace:1: text after the end of the list"):
        read_text(tmp_path, json.dumps([philly_job(1)]) + "\n x", skip_bad=True)


def test_one_job_after_the_other_needs_no_list(tmp_path):
    jobs = read_text(tmp_path, "".join(json.dumps(philly_job(number)) + "\n" for number in range(3)))
    assert jobs.line.tolist() == [1, 2, 3]


SAMPLES = [SWF, HELIOS, PAI, json.dumps([philly_job(1), philly_job(2)])]


@given(st.data())
def test_a_damaged_file_is_read_or_refused_by_name(tmp_path_factory, data):
    damaged_file_is_read_or_refused_by_name(read, tmp_path_factory.mktemp("trace"), SAMPLES, data)
