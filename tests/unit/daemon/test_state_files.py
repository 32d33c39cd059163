"""State files between versions: an upgrade reads what the version before has left, a downgrade what this one leaves.

state_files/VERSION is what a daemon in stage active has left in its state directory, beside a real Slurm.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import pytest

from rltuned.daemon.decisions import load
from rltuned.daemon.journal import Journal
from rltuned.errors import JournalError, RltunedError

ROOT = Path(__file__).resolve().parents[3]
RECORDED = sorted(Path(__file__).with_name("state_files").iterdir())
BEFORE = "b10ea04"
"""The last commit before the first packaged version; later: the tag of the version before this one."""

# Runs under the code of either version: prints what it reads; with "write", writes it anew first.
PROGRAM = """
import json, pathlib, sys
from rltuned.daemon import history
from rltuned.daemon.clock import Moment, SystemClock
from rltuned.daemon.heartbeat import read_heartbeat
from rltuned.daemon.journal import Journal

folder = pathlib.Path(sys.argv[1])
known = history.load(folder)
if "write" in sys.argv:
    journal = Journal.open(folder)
    journal.compact()
    journal.update(journal.entries.values())
    journal.close()
    (folder / history.FILE_NAME).write_text(json.dumps(known.to_json()))
journal = Journal.read(folder)
sign = read_heartbeat(Moment.of(SystemClock()), folder)
print(json.dumps({
    "alarms": journal.alarms,
    "entries": {
        job: [getattr(entry.applied, name) for name in ("submit_time", "site_factor", "foreign")]
        for job, entry in journal.entries.items()
    },
    "known": known.to_json(),
    "heartbeat": [sign.pid, sign.stale_after],
}))
"""


def read(folder, *more, code=ROOT):
    words = [sys.executable, "-c", PROGRAM, str(folder), *more]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The code of the version before, from git."""
    done = subprocess.run(["git", "archive", BEFORE, "rltuned"], capture_output=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        pytest.skip(f"no commit {BEFORE} here: {done.stderr.decode()[-200:]}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def left(request, tmp_path):
    """A state directory as a version has left it."""
    return Path(shutil.copytree(request.param, tmp_path / "state"))


def test_an_upgrade_reads_all_that_the_version_before_has_left(left):
    found = read(left)
    assert found["alarms"] == []
    jobs = {str(json.loads(line)["entry"]["job"]) for line in (left / "journal.jsonl").read_text().splitlines()[1:]}
    assert len(jobs) == 7
    assert found["entries"].keys() == jobs
    assert found["known"]["run_times"]["until"] == 0.0, "the accounting is read anew"
    with pytest.raises(RltunedError, match="wait for the next cycle"):
        load(left)
    assert found["heartbeat"] == [json.loads((left / "heartbeat.json").read_text())["pid"], 300.0]


def test_an_upgrade_knows_what_the_version_before_had_put_on_the_jobs(left):
    # The first cycle alone, as after a crash: each job has the value that this cycle has written.
    lines = (left / "journal.jsonl").read_text().splitlines(keepends=True)[:15]
    (left / "journal.jsonl").write_text("".join(lines))
    outcomes = [line for line in map(json.loads, lines) if line["kind"] == "outcome"]
    written = {str(line["entry"]["job"]): line["after"] for line in outcomes}
    assert len(written) == 7
    assert 0 not in written.values()
    entries = read(left)["entries"]
    assert entries.keys() == written.keys()
    assert {job: site_factor for job, (_, site_factor, *_) in entries.items()} == written


def test_a_downgrade_reads_all_that_this_version_leaves(left, before):
    written = read(left, "write")
    assert written["alarms"] == []
    found = read(left, code=before)
    assert found.pop("known")["until"] == 0.0, "the accounting is read anew"
    del written["known"]
    assert found == written


@pytest.mark.parametrize(
    "fields",
    [
        {"exc_nodes": "n1"},
        {"doubts": {"ExcNodeList": ["n1"], "SiteFactor": [5]}},
        {"previous": {"ExcNodeList": ["n1"]}},
        {"priority": 4000, "base": 3000},
        {"doubts": {"Priority": [0, 4000]}},
        {"nice": 300},
    ],
)
def test_what_an_older_version_left_and_this_one_cannot_give_back_is_refused_until_it_is_forgotten(tmp_path, fields):
    def line(number, **record):
        body = json.dumps({"seq": number, **record}, separators=(",", ":")).encode()[1:]
        return b'{"crc":"%08x",' % zlib.crc32(body) + body + b"\n"

    written = line(1, kind="begin", format=1, count=0) + line(2, kind="intent", entry={"job": 7, "submit": 5, **fields})
    (tmp_path / "journal.jsonl").write_bytes(written)
    with pytest.raises(JournalError, match=r"journal.jsonl:2: job 7 .*Priority.*`rltuned restore` of the version"):
        Journal.read(tmp_path)
    (tmp_path / "journal.jsonl").write_bytes(written + line(3, kind="forget", job=7))
    assert not Journal.read(tmp_path).entries
