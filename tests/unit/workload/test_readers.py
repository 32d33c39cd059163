"""Traces of both formats: what becomes of each column, and where and why a wrong line is wrong."""

import csv
import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
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
from rltuned.simulate.workload import lines
from rltuned.simulate.workload.jobs import Workload
from rltuned.simulate.workload.readers import read

RECORDED = Path(__file__).parents[2] / "recorded"

CSV = "submit_time,run_time,num_gpus\n"
SACCT = (
    "JobID|JobIDRaw|User|Account|Partition|QOS|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|ReqTRES|AllocTRES|NNodes|State\n"
    "7|7|alice|physics|gpu|high|2024-05-01T12:00:00|2024-05-01T12:01:00|2024-05-01T12:01:10|2024-05-01T12:11:10|600|60|"
    "billing=4,cpu=4,gres/gpu:K80=2,gres/gpu=2,mem=4G,node=1|cpu=4,gres/gpu:k80=2,gres/gpu=2,mem=4G,node=1|1|TIMEOUT\n"
    "7.batch|7.batch|||||2024-05-01T12:01:10|2024-05-01T12:01:10|2024-05-01T12:01:10|2024-05-01T12:11:10|600|||cpu=4|1|CANCELLED\n"
    "8_3|11|bob|physics|gpu,long|normal|2024-05-01T12:00:30|2024-05-01T12:00:30|2024-05-01T12:00:30|2024-05-01T12:00:31|1|"
    "UNLIMITED|cpu=16,gres/gpu=16,mem=1600M,node=1|cpu=16,gres/gpu:p100=16,gres/gpu=16,mem=1600M,node=4|4|COMPLETED\n"
    "9+1|13|bob|physics|gpu|normal|2024-05-01T12:00:40|2024-05-01T12:00:40|2024-05-01T12:00:40|2024-05-01T12:00:41|1|"
    "Partition_Limit|cpu=2,mem=100M,node=2|cpu=2,mem=100M,node=2|2|COMPLETED\n"
    "20|20|bob|physics|gpu|normal|2024-05-01T12:00:40|Unknown|Unknown|Unknown|0|60|cpu=2,node=1||1|PENDING\n"
    "21|21|bob|physics|gpu|normal|2024-05-01T12:00:40|2024-05-01T12:00:40|2024-05-01T12:00:50|Unknown|9|60|cpu=2,node=1|cpu=2|1|RUNNING\n"
    "22|22|bob|physics|gpu|normal|2024-05-01T12:00:40|2024-05-01T12:00:40|None|2024-05-01T12:00:50|0|60|"
    "cpu=2,node=1||1|CANCELLED by 1001\n"
    "23|23|bob|physics|gpu|normal|2024-05-01T12:00:40|2024-05-01T12:00:40|2024-05-01T12:00:50|2024-05-01T12:00:50|0|60|cpu=2,node=1||1|CANCELLED\n"
    "39_[1-5]|39|bob|physics|gpu|normal|2024-05-01T12:00:40|2024-05-01T12:00:41|Unknown|Unknown|0|30|cpu=2,gres/gpu=1,node=1||1|PENDING\n"
)


def read_text(tmp_path: Path, data: str | bytes, **options) -> Workload:
    return read(write(tmp_path, data), **options)


EVERY_COLUMN = (
    "JOB_ID, submit_time,wait,run_time,num_gpus,num_nodes,cpu_milli,mem_gb,gpu_type,vc,user,account,qos,time_limit,x\n"
    '31,0,4,60,1.5,2,2500,4,V100,prod,alice,a1,high,3600,"a, b"\n'
    "17,0,-1,60,0,-1,-1,,T4|P100,,,,,UNLIMITED,\n"
    "18,0,,60,1,,,,gpu,,,,,-1,\n"
)
START_AND_END = "submit_time,start_time,end_time,num_gpus\n0,10,15,1\n1,-1,-1,1\n2,2,-1,1\n"
NO_IDS = "job_id,submit_time,run_time,num_gpus\n7,5,1,1\n7,4,1,1\nx,6,1,1\n"
EPOCH = "JobID|Submit|Start|End|AllocTRES\n1|1714564800|1714564810|1714564890|cpu=1,gres/gpu=3\n"


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        (
            CSV + "50,10,1\n7,3.5,2\n",
            "submit_time run_time gpus line job_id time_limit wait_time nodes cpus mem user gpu_type",
            ["0 3.5 2 3 1 nan nan 0 0 0 - -", "43 10 1 2 2 nan nan 0 0 0 - -"],
        ),
        (
            EVERY_COLUMN,
            "job_id wait_time gpus nodes cpus mem gpu_type partition user account qos time_limit",
            [
                "31 4 2 2 3 4096 v100 prod alice a1 high 3600",
                "17 nan 0 0 0 0 - - - - - inf",
                "18 nan 1 0 0 0 - - - - - nan",
            ],
        ),
        (START_AND_END, "run_time wait_time", ["5 10"]),
        (NO_IDS, "job_id", ["1", "2", "3"]),
        # Submitted is from when a job could run. The first named no number of nodes: it asked for one, as Slurm counts,
        # and got four. The type is the one asked for, not the one it got.
        (
            SACCT,
            "job_id submit_time wait_time run_time gpus cpus mem nodes gpu_type partition qos account time_limit",
            [
                "11 0 0 1 16 16 1600 0 - gpu normal physics inf",
                "13 10 0 1 0 2 100 2 - gpu normal physics nan",
                "7 30 10 600 2 4 4096 1 k80 gpu high physics 3600",
            ],
        ),
        (EPOCH, "run_time wait_time gpus", ["80 10 3"]),
    ],
    ids=["three columns", "every column", "start and end", "no ids", "sacct", "epoch times"],
)
def test_what_becomes_of_the_columns(tmp_path, text, columns, expected):
    jobs = read_text(tmp_path, text)
    found = [getattr(jobs, name) for name in columns.split()]
    cells = [
        [text or "-" for text in texts(of)] if isinstance(of, Category) else [f"{x:g}" for x in of] for of in found
    ]
    assert [" ".join(row) for row in zip(*cells, strict=True)] == expected


def test_where_a_workload_comes_from_and_what_was_left_out(tmp_path):
    source = read_text(tmp_path, CSV + "50,10,1\n7,3.5,2\n").source
    assert (source.form, source.start) == ("csv", 7)
    assert read_text(tmp_path, START_AND_END).source.left_out == 2
    source = read_text(tmp_path, SACCT).source
    assert (source.form, source.left_out) == ("sacct", 5)


@pytest.mark.parametrize("note", ['"n;a;b;c;d"', '"a|b|c|d|e"', "note;a;b;c;d"])
def test_a_name_with_other_separators_in_it_separates_nothing(tmp_path, note):
    assert len(read_text(tmp_path, f'submit_time,num_gpus,run_time,{note}\n0,1,5,"x;y"\n')) == 1


def test_of_two_columns_for_the_same_the_last_counts_and_the_other_is_not_read(tmp_path):
    assert read_text(tmp_path, "submit_time,num_gpus,run_time,num_cpus,cpu_milli\n0,1,9,x,1500\n").cpus.tolist() == [2]


@pytest.mark.parametrize("separator", [";", "\t", "|", "^"])
def test_other_separators_than_the_usual_one(tmp_path, separator):
    own = "submit_time,run_time,num_gpus,user\n0,1,2,'a,b'\n".replace(",", separator).replace("'", '"')
    assert texts(read_text(tmp_path, own).user) == [f"a{separator}b"]
    jobs = read_text(tmp_path, SACCT.replace("|", separator))
    assert (jobs.source.form, jobs.gpus.tolist()) == ("sacct", [16, 0, 2])


def test_a_run_time_that_is_not_known_is_left_out_or_zero(tmp_path):
    path = write(tmp_path, CSV + "0,10,1\n1,-1,1\n2,,1\n")
    for keep, run_times in ((False, [10]), (True, [10, 0, 0])):
        jobs = read(path, keep_unknown=keep)
        assert (jobs.run_time.tolist(), jobs.source.unknown) == (run_times, 2)


@pytest.mark.parametrize(
    "spelt",
    [
        lambda text: "".join(f"{line}|\n" for line in text.splitlines()),
        lambda text: text.replace("2024-05-01T12:", "2024-05-01 12:"),
        lambda text: text.replace("TimelimitRaw", "Timelimit").replace("|60|", "|01:00:00|"),
        lambda text: text.replace("ElapsedRaw", "Elapsed").replace("|600|", "|00:10:00|"),
        lambda text: text.replace("\n", "\r\n"),
    ],
    ids=["sacct -p", "blank for T", "Timelimit", "Elapsed", "CRLF"],
)
def test_sacct_in_other_spellings(tmp_path, spelt):
    text = "".join(line for line in SACCT.splitlines(keepends=True) if line[:2] in {"Jo", "7|", "7."})
    plain, other = read_text(tmp_path, text), read_text(tmp_path, spelt(text))
    assert other.submit_time.tolist() == plain.submit_time.tolist()
    assert other.run_time.tolist() == plain.run_time.tolist() == [600]
    assert other.time_limit.tolist() == plain.time_limit.tolist() == [3600]
    assert other.gpus.tolist() == [2]


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_what_a_real_sacct_printed(release):
    path = RECORDED / release / "sacct.txt"
    header, *rows = (line.split("|") for line in path.read_text().splitlines())
    jobs = [dict(zip(header, row, strict=True)) for row in rows if "." not in row[0]]
    ran = [job for job in jobs if "Unknown" not in {job["Start"], job["End"]} and job["Start"] != "None"]
    ran = [job for job in ran if job["ElapsedRaw"] != "0" or not job["State"].startswith("CANCELLED")]
    assert ran
    read_jobs = read(path)
    assert sorted(read_jobs.job_id.tolist()) == sorted(int(job["JobIDRaw"]) for job in ran)
    assert read_jobs.source.left_out == len(jobs) - len(ran)
    row = {int(job_id): at for at, job_id in enumerate(read_jobs.job_id)}
    for job in ran:
        at = row[int(job["JobIDRaw"])]
        assert read_jobs.run_time[at] == float(job["ElapsedRaw"])
        assert read_jobs.time_limit[at] == 60 * float(job["TimelimitRaw"])
        assert texts(read_jobs.user)[at] == job["User"]
        tres = dict(part.split("=") for part in job["ReqTRES"].split(","))
        assert read_jobs.gpus[at] == int(tres.get("gres/gpu", 0))
        assert read_jobs.cpus[at] == int(tres["cpu"])
        typed = [name.split(":")[1] for name in tres if name.startswith("gres/gpu:")]
        assert read_jobs.gpu_type.value(at) == (typed[0] if typed else "")


# --- packed, cut, damaged, not text


@pytest.mark.parametrize(
    "text",
    [CSV + "0,1,1\n", SACCT],
    ids=["csv", "sacct"],
)
def test_gzip_is_known_by_its_first_bytes_and_the_hash_is_of_the_file_on_disk(tmp_path, text):
    plain, data = read_text(tmp_path, text), gzip.compress(text.encode())
    packed = read_text(tmp_path, data)
    for column in ("submit_time", "run_time", "gpus", "line"):
        assert getattr(packed, column).tolist() == getattr(plain, column).tolist()
    assert packed.source.form == plain.source.form
    assert packed.source.sha256 == hashlib.sha256(data).hexdigest()
    assert plain.source.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_gzip_members_may_follow_each_other(tmp_path):
    data = gzip.compress(CSV.encode()) + gzip.compress(b"0,1,1\n") + gzip.compress(b"1,1,2\n") + bytes(512)
    assert read_text(tmp_path, data).gpus.tolist() == [1, 2]


def test_a_truncated_gzip_names_the_line_where_it_ends(tmp_path):
    text = CSV + "".join(f"{number},{number * 37 % 911},1\n" for number in range(5000))
    data = gzip.compress(text.encode())
    with pytest.raises(WorkloadError, match=r"trace:5002: the gzip stream ends here: the file is truncated"):
        read_text(tmp_path, data[:-4])
    for skip_bad in (False, True):
        with pytest.raises(WorkloadError, match=r"trace:[0-9]+: the gzip stream ends here"):
            read_text(tmp_path, data[: len(data) // 2], skip_bad=skip_bad)
    for packed in (data[:5], gzip.compress(CSV.encode())[:25]):  # nothing of the header, part of it
        with pytest.raises(WorkloadError, match=r"trace:1: the gzip stream ends here"):
            read_text(tmp_path, packed)
    with pytest.raises(WorkloadError, match=r"trace:[0-9]+: the gzip stream is damaged"):
        read_text(tmp_path, data[:500] + b"XXXX" + data[504:])


def test_an_archive_is_not_unpacked(tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x.csv"))
    with pytest.raises(WorkloadError, match="is a tar archive; unpack it first"):
        read_text(tmp_path, archive.getvalue())
    with pytest.raises(WorkloadError, match="is packed with xz; only gzip is read"):
        read_text(tmp_path, b"\xfd7zXZ\x00....")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "trace: is empty"),
        (b"\n\n \n", "trace: is empty"),
        (gzip.compress(b"", mtime=0), "trace: is empty"),
        (CSV, "trace: no jobs in it"),
        ("; Version: 2.2\n", "trace: the format is not recognised from its first line '; Version: 2.2'"),
        (CSV + "0,-1,1\n", "trace: no jobs in it: 1 have no run time"),
        (bytes(range(256)), "trace: not a text file"),
        ((CSV + "0,1,1\n").encode("utf-16"), "trace: is UTF-16; convert it to UTF-8"),
        ("a,b\n1,2\n", "trace: the format is not recognised from its first line 'a,b'"),
        (
            "submit_time,runtime,num_gpus\n0,1,1\n",
            "trace:1: no column run_time or end_time (csv); there is submit_time, runtime",
        ),
        ("\nsubmit_time,submit_time,run_time,num_gpus\n0,0,1,1\n", "trace:2: two columns are called submit_time"),
        (SACCT.replace("TRES", "TR"), "trace:1: no column reqtres or alloctres (sacct)"),
    ],
)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_without_jobs_is_named(tmp_path, data, reason, skip_bad):
    with pytest.raises(WorkloadError) as error:
        read_text(tmp_path, data, skip_bad=skip_bad)
    assert reason in str(error.value)


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(WorkloadError, match="missing: cannot be read: No such file"):
        read(tmp_path / "missing")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read(tmp_path)


def test_a_file_without_line_ends_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE", 1000)
    with pytest.raises(WorkloadError, match=r"trace:2: a line of more than 1,000 bytes"):
        read_text(tmp_path, CSV + "0" * 3000)


# --- wrong lines

ROW = "5,10,1"
BAD_CSV = [
    ("5,10", "2 fields instead of 3"),
    ("5,10,1,1", "4 fields instead of 3"),
    ("-7,10,1", "submit_time: -7 is below 0"),
    (",10,1", "submit_time: is empty"),
    ("-1,10,1", "submit_time: -1 means not known"),
    ("5,-3,1", "run_time: -3 is below 0"),
    ("5,nan,1", "run_time: nan is not a finite number"),
    ("5,-inf,1", "run_time: -inf is not a finite number"),
    ("5,1e999,1", "run_time: '1e999' is too large a number"),
    ("5,99999999999,1", "run_time: '99999999999' is above 3,162,240,000"),
    ("1600000000000,1,1", "submit_time: '1600000000000' is above 100,000,000,000"),
    ("5,10,", "num_gpus: is empty"),
    ("5,10,-1", "num_gpus: -1 means not known"),
    ("5,10,2000000", "num_gpus: '2000000' is above 1,000,000"),
    ("5,10,eight", "num_gpus: 'eight' is not a number"),
    ("1_000,10,1", "submit_time: '1_000' is not a number"),
    ("0x10,10,1", "submit_time: '0x10' is not a number"),
    ("\u0661,10,1", "submit_time: '\u0661' is not a number"),
    ('"5,10,1', "wrong quotes: unexpected end of data"),
    ("5,10\0,1", "a NUL byte in column 5"),
    (b"5,10,\xfc", "not UTF-8: byte 0xfc in column 6"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_CSV, ids=[str(reason) for _, reason in BAD_CSV])
def test_a_wrong_line_of_a_csv_is_named_or_counted(tmp_path, line, reason):
    middle = line if isinstance(line, bytes) else line.encode()
    data = CSV.encode() + f"{ROW}\n\n{ROW}\n".encode() + middle + f"\n{ROW}\n".encode()
    with pytest.raises(WorkloadError) as error:
        read_text(tmp_path, data)
    assert str(error.value) == f"{tmp_path / 'trace'}:5: {reason}"
    jobs = read_text(tmp_path, data, skip_bad=True)
    assert jobs.source.skipped == 1
    assert jobs.line.tolist() == [2, 4, 6]
    with pytest.raises(WorkloadError, match=r"no jobs in it: 1 lines cannot be read \(line 2: "):
        read_text(tmp_path, CSV.encode() + middle + b"\n", skip_bad=True)


BAD_LINES = [
    (
        SACCT,
        2,
        "mem=4G",
        "mem=4Q",
        "reqtres: 'billing=4,cpu=4,gres/gpu:K80=2,gres/gpu=2,mem=4Q,node=1' is no TRES list such as",
    ),
    (SACCT, 2, "|600|", "|600|x|", "17 fields instead of 16"),
    (SACCT, 4, "2024-05-01T12:00:30", "0000-00-00T00:00:00", "submit: '0000-00-00T00:00:00' is no time"),
    (SACCT, 4, "2024-05-01T12:00:30", "9" * 19, "submit: '9999999999999999999' is no time"),
    (SACCT, 4, "2024-05-01T12:00:30", "noon", "submit: 'noon' is no time such as 2020-06-09 18:41:01"),
    (SACCT, 4, "UNLIMITED", "ages", "timelimitraw: 'ages' is no time limit"),
    (SACCT, 2, "gres/gpu=2", "gres/gpu=2000000", "gpus: 2,000,000 is too large"),
]


@pytest.mark.parametrize(("text", "number", "old", "new", "reason"), BAD_LINES)
def test_a_wrong_line_is_named_or_counted(tmp_path, text, number, old, new, reason):
    wrong_line_is_named_or_counted(read, tmp_path, text, number, at_line(text, number, old, new), reason)


# --- properties


ROWS = st.tuples(
    st.integers(0, 10**9), st.integers(0, 10**7), st.integers(0, 512), st.sampled_from(["", "a", "b,c", 'd"e', "ü"])
)


@settings(max_examples=30)
@given(st.lists(ROWS, min_size=1, max_size=30))
def test_what_is_written_is_what_is_read(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("trace")
    with (folder / "trace").open("w", newline="") as file:
        csv.writer(file).writerows([("submit_time", "run_time", "num_gpus", "user"), *rows])
    jobs = read(folder / "trace")
    lines, expected = zip(*sorted(enumerate(rows, 2), key=lambda item: item[1][0]), strict=True)
    columns = (jobs.submit_time + jobs.source.start, jobs.run_time, jobs.gpus, texts(jobs.user))
    assert [*zip(*columns, strict=True)] == [*expected]
    assert jobs.line.tolist() == [*lines]


SAMPLES = [CSV + "0,1,1\n5,6,7\n", SACCT]


@given(st.data())
def test_a_damaged_file_is_read_or_refused_by_name(tmp_path_factory, data):
    damaged_file_is_read_or_refused_by_name(read, tmp_path_factory.mktemp("trace"), SAMPLES, data)


def test_many_small_blocks_give_the_same_jobs(tmp_path, monkeypatch):
    text = CSV + "".join(f"{number},{number % 7},{number % 5}\n" for number in range(500))
    whole = read_text(tmp_path, text)
    monkeypatch.setattr(lines, "ROWS", 7)
    seen = []
    parts = read_text(
        tmp_path, gzip.compress(text.encode()), progress=lambda _stage, done, total: seen.append((done, total))
    )
    assert parts.submit_time.tolist() == whole.submit_time.tolist()
    assert parts.line.tolist() == whole.line.tolist()
    assert seen[-1][0] == seen[-1][1] == (tmp_path / "trace").stat().st_size
