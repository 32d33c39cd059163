"""One strange row costs itself: any field of any row of what real clusters answered, replaced by garbage."""

import dataclasses
import re
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.slurm.standin import RECORDED

from rltuned.core.errors import SlurmParseError
from rltuned.core.notation import expand
from rltuned.core.tables import Category
from rltuned.core.unread import RowKind
from rltuned.lab.benchmarks import Canned
from rltuned.slurm import listings, notation
from rltuned.slurm.commands import EXCLUSIVE, JOB_FIELDS, REGISTRY, SEPARATOR, SITE_FIELDS, STATUS_FIELDS
from rltuned.slurm.snapshot import read_snapshot
from rltuned.slurm.squeue import COLUMNS
from rltuned.slurm.status import read_status

RECORDINGS = pytest.mark.parametrize(
    "recording", [(release, suffix) for release in ("22.05", "24.11", "26.05") for suffix in ("", "-mixed")]
)
NOW = 1795335000.0

READERS = {field: column.reads for field, column in COLUMNS.items()} | {"ArrayJobID": notation.named_job}
"""What reads a column of squeue. In the others any text is a value, or any unknown word means hands off."""

WORDS = (
    "? \x7f @@ {} é\u2028x - + 1.2.3 NaN inf ( )( % gpu: gpu:a:b:c cpu cpu=x [1- : = 99999999999999999999P 0 N/A 1e9"
)
ODD = (*WORDS.split(" "), "9" * 25, "-9" * 12, "x y", "IDLE DRAIN", "", SEPARATOR, f"a{SEPARATOR}b", "\n", "a\nb")
garbage = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map("¿{}".format)
few_examples = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def garbled_anywhere(test):
    """A test of every recording, `data` says where it is garbled."""
    return RECORDINGS(few_examples(given(data=st.data())(test)))


@cache
def recorded(recording):
    release, suffix = recording
    answers = {}
    for name in REGISTRY:
        for path in (RECORDED / release / f"{name}{suffix}.txt", RECORDED / release / f"{name}.txt"):
            if name not in answers and path.exists():
                answers[name] = path.read_bytes().decode("utf-8", "surrogateescape")
    return answers


def replaced(answer, row, column, text):
    """The answer with another text in one field of a separated table, and what that row was."""
    lines = answer.split("\n")
    values = lines[row].split(SEPARATOR)
    lines[row] = SEPARATOR.join([*values[:column], text, *values[column + 1 :]])
    return "\n".join(lines), values[:-1]


def by_id(snapshot):
    """The row of each job as plain text."""
    jobs, names = snapshot.jobs, snapshot.nodes.names
    columns = {field.name: getattr(jobs, field.name) for field in dataclasses.fields(jobs)}
    del columns["node_ptr"], columns["node_idx"]
    lists = {name: of.texts() if isinstance(of, Category) else of.tolist() for name, of in columns.items()}
    return {
        job: repr([[values[row] for values in lists.values()], [names[node] for node in jobs.nodes_of(row)]])
        for row, job in enumerate(lists["job_id"])
    }


def by_name(snapshot):
    """Each node and each partition as plain text."""
    nodes = snapshot.nodes
    fields = ("usable", "cpus", "cpus_alloc", "mem", "mem_alloc", "tmp", "asleep")
    kinds = list(enumerate(nodes.gpu_types))
    shown = {
        name: repr([getattr(nodes, field)[row].tolist() for field in fields])
        + repr([(kind, nodes.gpus[row, at], nodes.gpus_alloc[row, at]) for at, kind in kinds if nodes.gpus[row, at]])
        + repr(sorted(nodes.features[row]))
        for row, name in enumerate(nodes.names)
    }
    partitions = {
        f"partition {part.name}": repr(dataclasses.replace(part, nodes=None))
        + repr([nodes.names[n] for n in part.nodes])
        for part in snapshot.partitions
    }
    return shown | partitions


@cache
def clean(recording):
    snapshot = read_snapshot(Canned(recorded(recording)), NOW)
    assert not snapshot.unread
    return by_id(snapshot), by_name(snapshot), read_status(Canned(recorded(recording)), None)


def understood(reads, text):
    try:
        reads(text)
    except SlurmParseError:
        return False
    return True


def others(rows, about):
    return {key: row for key, row in rows.items() if key not in about}


def pick(data, answer, width):
    return data.draw(st.integers(0, answer.count("\n") - 1)), data.draw(st.integers(0, width - 1)), data.draw(garbage)


def ids_of(values):
    return {int(value) for value in values if value.isdigit() and value != "0"}


def test_pending_tasks_without_an_id_are_unread_although_other_tasks_of_the_array_run():
    answers = dict(recorded(("22.05", "")))
    name = "jobs-exclusive" if "jobs-exclusive" in answers else "jobs"
    rows = [dict(zip(JOB_FIELDS, line.split(SEPARATOR), strict=False)) for line in answers[name].splitlines()]
    runs = {row["ArrayJobID"] for row in rows if row["StateCompact"] == "R" and row["JobID"] != row["ArrayJobID"]}
    (at,) = (at for at, row in enumerate(rows) if row["StateCompact"] == "PD" and row["JobID"] in runs)
    answers[name], _ = replaced(answers[name], at, 0, SEPARATOR)
    found = read_snapshot(Canned(answers), NOW)
    assert found.unread.about(int(rows[at]["JobID"]), queued=False)


@garbled_anywhere
def test_a_field_of_a_job_costs_that_job_and_no_other(recording, data):
    answers = dict(recorded(recording))
    name, fields = ("jobs-exclusive", (*JOB_FIELDS, EXCLUSIVE)) if "jobs-exclusive" in answers else ("jobs", JOB_FIELDS)
    row, column, text = pick(data, answers[name], len(fields))
    answers[name], before = replaced(answers[name], row, column, text)
    values, field = dict(zip(fields, before, strict=True)), fields[column]
    about = ids_of(before[:2])

    snapshot = read_snapshot(Canned(answers), NOW)

    jobs, nodes, _ = clean(recording)
    assert others(by_id(snapshot), about) == others(jobs, about)
    # A text that could be a node's name is that of one which scontrol does not list.
    assert others(by_name(snapshot), {text}) == nodes
    assert snapshot.unread.jobs.keys() <= about
    waiting_tasks = values["ArrayTaskID"] != "N/A" and values["StateCompact"] == "PD"
    if SEPARATOR in text or "\n" in text:
        named = True
    elif field == "StateCompact":
        named = text not in notation.KNOWN_STATES
    elif field == "NodeList":
        readable = text in notation.NOTHING or (
            understood(expand, text) and all(map(listings.is_node_name, expand(text)))
        )
        named = values["StateCompact"] in notation.HOLDING_STATES and not readable
    elif field == "ArrayJobID":
        named = waiting_tasks and not understood(notation.named_job, text)
    else:
        named = field in READERS and not understood(READERS[field], text)
    if named:
        assert snapshot.unread.counts[RowKind.JOB] >= 1
        there = snapshot.jobs.row_of
        # Named; or, where even the id is gone, whatever is missing may be it.
        assert any(snapshot.unread.about(job, queued=job in there) for job in about)


@garbled_anywhere
def test_a_field_of_a_status_costs_that_job_and_no_other(recording, data):
    answers = dict(recorded(recording))
    exclusive = "status-exclusive" in answers
    name, fields = ("status-exclusive", (*STATUS_FIELDS, EXCLUSIVE)) if exclusive else ("status", STATUS_FIELDS)
    row, column, text = pick(data, answers[name], len(fields))
    answers[name], before = replaced(answers[name], row, column, text)
    about = ids_of(before[:2])
    _, _, statuses = clean(recording)

    found = read_status(Canned(answers), None)
    asked = read_status(Canned(answers), sorted({*statuses, *about}))

    assert others(found, about) == others(statuses, about)
    assert others(asked, about) == others(statuses, about)
    # Asked for by its id, a job that is in the queue is never gone, whatever its row says. (Its id may be a running
    # task's.)
    changed = {job for job in about & statuses.keys() if asked.get(job) != statuses[job]}
    if fields[column] in {"JobID", "ArrayJobID", "ArrayTaskID", "StateCompact", "SubmitTime", "PriorityLong", "Nice"}:
        assert all(
            asked[job].strange or not asked[job].pending or understood_field(fields[column], text) for job in changed
        )
        assert about & statuses.keys() <= asked.keys() | (about if understood_field(fields[column], text) else set())


def understood_field(field, text):
    return text in notation.KNOWN_STATES if field == "StateCompact" else understood(READERS[field], text)


@garbled_anywhere
def test_a_field_of_sprio_costs_that_job_and_no_other(recording, data):
    answers = dict(recorded(recording))
    row, column, text = pick(data, answers["site-factors"], len(SITE_FIELDS))
    answers["site-factors"], before = replaced(answers["site-factors"], row, column, text)
    about = ids_of(before[:1])
    jobs, nodes, statuses = clean(recording)

    snapshot = read_snapshot(Canned(answers), NOW)
    found = read_status(Canned(answers), None)

    assert others(by_id(snapshot), about) == others(jobs, about)
    assert by_name(snapshot) == nodes
    reads = {"%i": notation.named_job, "%T": notation.tres_terms}.get(SITE_FIELDS[column], notation.integer)
    if SEPARATOR in text or "\n" in text or not understood(reads, text):
        assert snapshot.unread.counts[RowKind.SITE_FACTOR] >= 1
        (job,) = about
        # (One of several partitions has a row for each, which all say the same.)
        listed = [line.split(SEPARATOR)[0] for line in recorded(recording)["site-factors"].split("\n")]
        if listed.count(str(job)) == 1:
            assert snapshot.unread.about(job, queued=True)
            assert found[job].strange
    strange = {job for job, status in found.items() if status.strange}
    # Without a name it may be any job that no other row is about: none that Slurm gives a factor.
    assert all(statuses[job].site_factor is None for job in strange - about)
    assert others(found, about | strange) == others(statuses, about | strange)


@garbled_anywhere
def test_a_field_of_the_excluded_nodes_costs_that_job_and_no_other(recording, data):
    answers = dict(recorded(recording))
    row, column, text = pick(data, answers["excluded"], 4)
    answers["excluded"], before = replaced(answers["excluded"], row, column, text)
    about = ids_of(before[:2])
    jobs, _, statuses = clean(recording)
    snapshot = read_snapshot(Canned(answers), NOW)
    assert others(by_id(snapshot), about) == others(jobs, about)
    found = read_status(Canned(answers), None)
    assert others(found, about) == others(statuses, about)
    if SEPARATOR in text or "\n" in text:
        assert snapshot.unread.counts[RowKind.EXCLUDED_NODES] >= 1


KEYS = {
    "nodes": {
        "NodeName": None,
        "State": listings.node_state,
        "AllocTRES": notation.tres,
        **dict.fromkeys(("Gres", "GresUsed"), notation.gres),
        **dict.fromkeys(("CPUTot", "CPUAlloc", "CPUEfctv"), notation.count),
        **dict.fromkeys(("RealMemory", "AllocMem", "TmpDisk"), notation.memory),
        **dict.fromkeys(("ActiveFeatures", "OS", "Weight"), str),
    },
    "partitions": {
        "State": str,
        "PriorityTier": notation.integer,
        "MaxTime": notation.slurm_seconds,
        "MaxNodes": notation.count,
        "OverSubscribe": None,
        "Nodes": expand,
        "QoS": str,
    },
}


def garbled(recording, data, listing):
    """A snapshot with another text behind one of these keys; the text, whose line, and whether it is wrong."""
    answers, keys = dict(recorded(recording)), KEYS[listing]
    lines = answers[listing].split("\n")
    at = data.draw(st.integers(0, len(lines) - 2))
    key = data.draw(st.sampled_from([key for key in keys if f"{key}=" in lines[at]]))
    start, end = re.search(rf"(?:^| ){key}=([^ \n]*)", lines[at]).span(1)
    text = data.draw(garbage)
    name = re.match(r"(?:Node|Partition)Name=(\S+)", lines[at])[1]
    lines[at] = lines[at][:start] + text + lines[at][end:]
    answers[listing] = "\n".join(lines)
    plain = text.split(" ")[0].split("\n")[0]
    wrong = "\n" in text or (keys[key] is not None and not understood(keys[key], plain))
    return read_snapshot(Canned(answers), NOW), text, name, wrong


@garbled_anywhere
def test_a_word_of_a_node_costs_that_node_and_nothing_else(recording, data):
    snapshot, text, name, wrong = garbled(recording, data, "nodes")

    jobs, nodes, _ = clean(recording)
    assert by_id(snapshot) == jobs
    after = by_name(snapshot)
    # A partition's line names its nodes; one of a garbled name is not there for it.
    assert others(after, {name, *(k for k in after if k.startswith("partition ")), *(after.keys() - nodes.keys())}) == {
        k: row for k, row in nodes.items() if k != name and not k.startswith("partition ")
    }
    if wrong:
        assert snapshot.unread.counts[RowKind.NODE] >= 1
        assert "\n" in text or not snapshot.nodes.usable[snapshot.nodes.row_of[name]]
    else:
        assert not snapshot.unread.jobs


@garbled_anywhere
def test_a_word_of_a_partition_costs_that_partition_and_nothing_else(recording, data):
    snapshot, text, plain_name, wrong = garbled(recording, data, "partitions")
    name = f"partition {plain_name}"

    jobs, nodes, _ = clean(recording)
    assert by_id(snapshot) == jobs
    assert others(by_name(snapshot), {name}) == others(nodes, {name})
    if wrong:
        assert snapshot.unread.counts[RowKind.PARTITION] >= 1
    part = snapshot.partition_by_name[plain_name]
    if snapshot.unread and "\n" not in text:
        assert (part.up, part.priority_tier) == (False, -1)
