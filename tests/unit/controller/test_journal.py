import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.controller.support import files_no_longer_than

from rltuned.controller.write.claims import MAX_DOUBTS, Entry
from rltuned.controller.write.journal import COMPACT_LINES, Journal, Settlement, entry_from_json, entry_to_json
from rltuned.core.changes import Applied, Change, Field, Outcome, OverSubscribe, SiteFactor
from rltuned.core.errors import JournalError


def change(job, after=100, of=Field.SITE_FACTOR):
    return Change(job, 1000 + job, of, 0, SiteFactor(after) if type(after) is int else after, position=job)


def _intent(journal, job, after):
    asked = change(job, after)
    return (journal.entry(job, 1000 + job) or Entry.blank(asked)).intended(asked, 5.0)


def write_a_cycle(journal, jobs, after):
    intents = [(change(job, after), _intent(journal, job, after)) for job in jobs]
    journal.intend(intents)
    journal.settle(
        [Settlement(item, Outcome.APPLIED, "", entry.landed(item.field, item.after, 6.0)) for item, entry in intents]
    )


def factors(journal):
    return {job: entry.applied.site_factor for job, entry in journal.entries.items()}


@pytest.fixture
def roots(tmp_path):
    return tmp_path / "state", tmp_path / "mirror"


def test_what_was_written_is_there_after_opening_again(roots):
    journal = Journal.open(*roots)
    write_a_cycle(journal, [1, 2, 3], 100)
    journal.update(forget=[2])
    journal.close()
    again = Journal.open(*roots)
    assert factors(again) == {1: 100, 3: 100}
    assert again.entries == journal.entries
    assert not again.damage


def test_it_knows_whether_a_job_was_ever_noted(roots):
    Journal.open(*roots).close()
    journal = Journal.open(*roots)
    assert not journal.used
    write_a_cycle(journal, [1], 100)
    journal.update(forget=[1])
    journal.close()
    for _ in range(2):
        journal = Journal.open(*roots)
        assert (journal.used, dict(journal.entries)) == (True, {})
        journal.close()


def test_each_line_is_json_with_a_checksum_and_a_sequence_number(roots):
    journal = Journal.open(*roots)
    write_a_cycle(journal, [1, 2], 100)
    lines = (roots[0] / "journal.jsonl").read_bytes().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["kind"] for record in records] == ["begin", "intent", "intent", "outcome", "outcome"]
    assert [record["seq"] for record in records] == list(range(records[0]["seq"], records[0]["seq"] + 5))
    for line, record in zip(lines, records, strict=True):
        assert int(record["crc"], 16) == zlib.crc32(line.split(b",", 1)[1])


@pytest.mark.parametrize("with_mirror", [False, True])
def test_a_journal_truncated_at_any_byte_loses_at_most_the_lines_after_it(roots, with_mirror):
    mirror = roots[1] if with_mirror else None
    journal = Journal.open(roots[0], mirror)
    write_a_cycle(journal, [1, 2], 100)
    journal.close()
    path = roots[0] / "journal.jsonl"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        found = Journal.read(roots[0], mirror)
        if with_mirror:
            assert factors(found) == {1: 100, 2: 100}
        else:
            lines = whole[:size].count(b"\n") + (whole[size : size + 1] == b"\n")
            expected = {0: {}, 1: {}, 2: {1}, 3: {1, 2}, 4: {1, 2}, 5: {1, 2}}[lines]
            assert set(found.entries) == set(expected)
            for entry in found.entries.values():
                assert 100 in entry.ours(Field.SITE_FACTOR), "an intent alone is enough for the way back"
        torn = size > 0 and whole[size - 1 : size] != b"\n" and whole[size : size + 1] != b"\n"
        assert found.damaged_lines == torn


def test_a_truncated_journal_is_written_on_from_a_whole_line(roots):
    journal = Journal.open(roots[0])
    write_a_cycle(journal, [1, 2], 100)
    journal.close()
    path = roots[0] / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    journal = Journal.open(roots[0])
    assert journal.damaged_lines == 1
    write_a_cycle(journal, [3], 50)
    assert not Journal.read(roots[0]).damage
    assert set(Journal.read(roots[0]).entries) == {1, 2, 3}


@given(st.data())
def test_a_flipped_byte_costs_no_more_than_its_line(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("journal")
    journal = Journal.open(root)
    write_a_cycle(journal, [1, 2, 3], 100)
    path = root / "journal.jsonl"
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    found = Journal.read(root)
    assert found.damage
    assert set(found.entries) >= {1, 2, 3} - {1 + content[:at].count(b"\n") % 3}
    assert all(100 in entry.ours(Field.SITE_FACTOR) for entry in found.entries.values())


def test_both_copies_damaged_in_different_places_make_one_whole(roots):
    journal = Journal.open(*roots)
    write_a_cycle(journal, [1, 2, 3, 4], 100)
    for root, line in zip(roots, (2, 3), strict=True):
        path = root / "journal.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        lines[line] = b"rubbish\n"
        lines[line + 4] = b"rubbish\n"
        path.write_bytes(b"".join(lines))
    found = Journal.read(*roots)
    assert factors(found) == {1: 100, 2: 100, 3: 100, 4: 100}
    assert found.damaged_lines == 4


def test_a_full_disk_at_every_write_keeps_memory_and_disk_in_step(roots):
    journal = Journal.open(roots[0])
    write_a_cycle(journal, [1], 10)
    size = (roots[0] / "journal.jsonl").stat().st_size
    refused = 0
    for room in range(0, 700, 13):
        with files_no_longer_than(size + room):
            try:
                journal.intend([(change(2), _intent(journal, 2, 100))])
            except JournalError:
                refused += 1
                assert 2 not in journal.entries
            else:
                assert 2 in journal.entries
        on_disk = Journal.read(roots[0])
        assert 1 in on_disk.entries
        assert not on_disk.damage, "a torn line is cut off"
        journal.update(forget=[2])
        size = (roots[0] / "journal.jsonl").stat().st_size
    assert refused


def test_with_one_copy_full_the_other_takes_over_with_an_alarm_and_the_first_recovers(tmp_path):
    state, mirror = tmp_path / "state", tmp_path / "mirror"
    journal = Journal.open(state, mirror)
    write_a_cycle(journal, [1], 10)
    # The directory is replaced by a file: nothing can be written there, not even by root.
    (state / "journal.jsonl").unlink()
    state.rmdir()
    state.write_text("in the way")
    write_a_cycle(journal, [2], 20)
    assert journal.writable
    assert len(journal.alarms) == 1
    assert str(state) in journal.alarms[0]
    assert factors(Journal.read(tmp_path / "none", mirror)) == {1: 10, 2: 20}
    state.unlink()
    write_a_cycle(journal, [3], 30)
    assert journal.alarms == ()
    assert factors(Journal.read(state)) == {1: 10, 2: 20, 3: 30}


def test_a_journal_deleted_under_the_daemon_is_written_anew_not_into_the_void(roots):
    journal = Journal.open(roots[0])
    write_a_cycle(journal, [1], 10)
    (roots[0] / "journal.jsonl").unlink()
    with pytest.raises(JournalError):
        journal.update([replace(journal.entries[1], touched=9.0)])
    write_a_cycle(journal, [2], 20)
    assert factors(Journal.read(roots[0])) == {1: 10, 2: 20}


def test_nothing_is_appended_to_half_a_line(roots):
    journal = Journal.open(*roots)
    write_a_cycle(journal, [1], 10)
    path = roots[0] / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    write_a_cycle(journal, [2], 20)
    assert factors(Journal.read(roots[0])) == {1: 10, 2: 20}


def test_compaction_keeps_the_file_short_and_the_state_whole(roots):
    journal = Journal.open(*roots)
    jobs = range(1, 41)
    for value in range(1, 201):
        write_a_cycle(journal, jobs, value)
    lines = (roots[0] / "journal.jsonl").read_bytes().count(b"\n")
    assert lines < COMPACT_LINES + 10 * len(jobs) < 2 * 200 * len(jobs)
    assert factors(Journal.read(*roots)) == dict.fromkeys(jobs, 200)
    assert sorted(path.name for path in roots[0].iterdir()) == ["journal.jsonl"], "no temporary files stay"


def test_an_older_mirror_does_not_bring_forgotten_jobs_back(roots):
    journal = Journal.open(*roots)
    write_a_cycle(journal, [1, 2], 10)
    old = (roots[1] / "journal.jsonl").read_bytes()
    journal.update(forget=[1])
    journal.compact()
    (roots[1] / "journal.jsonl").write_bytes(old)
    assert set(Journal.read(*roots).entries) == {2}


def test_a_compacted_state_with_missing_lines_is_completed_by_the_older_copy(roots):
    journal = Journal.open(*roots)
    write_a_cycle(journal, [1, 2, 3], 10)
    old = (roots[1] / "journal.jsonl").read_bytes()
    journal.compact()
    path = roots[0] / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    (roots[1] / "journal.jsonl").write_bytes(old)
    found = Journal.read(*roots)
    assert set(found.entries) == {1, 2, 3}
    assert "missing lines" in found.damage


def test_a_journal_of_a_newer_version_is_refused_by_name(roots):
    Journal.open(roots[0])
    body = b'"seq":1,"kind":"begin","format":2,"count":0}'
    line = b'{"crc":"%08x",' % zlib.crc32(body) + body + b"\n"
    (roots[0] / "journal.jsonl").write_bytes(line)
    with pytest.raises(JournalError, match="format 2 is newer"):
        Journal.read(roots[0])


def line(number, **record):
    body = json.dumps({"seq": number, **record}, separators=(",", ":")).encode()[1:]
    return b'{"crc":"%08x",' % zlib.crc32(body) + body + b"\n"


@pytest.mark.parametrize(
    "fields",
    [
        {"exc_nodes": "n1"},
        {"doubts": {"ExcNodeList": ["n1"], "SiteFactor": [5]}},
        {"previous": {"ExcNodeList": ["n1"]}},
        {"priority": 4000, "base": 3000},
        {"doubts": {"Priority": [0, 4000]}},
        {"nice": 300},
        {"oversubscribe": "PERHAPS"},
    ],
)
def test_what_another_version_wrote_and_this_one_cannot_give_back_is_refused_until_it_is_forgotten(tmp_path, fields):
    begin = line(1, kind="begin", format=1, count=0)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(begin + line(2, kind="intent", entry={"job": 7, "submit": 5, **fields}))
    with pytest.raises(JournalError, match=r"journal.jsonl:2: is whole, .*`rltuned restore` of that version"):
        Journal.read(tmp_path)
    # A torn line is no word of anybody's.
    path.write_bytes(begin + line(2, kind="intent", entry={"job": 7, "submit": 5, **fields})[:-9])
    assert Journal.read(tmp_path).damaged_lines == 1
    # As the second `restore` leaves it.
    path.write_bytes(begin)
    assert not Journal.read(tmp_path).damage


def test_the_site_factors_of_a_journal_of_version_0_1_are_known_and_so_given_back(tmp_path):
    # Of the first cycle, as after a crash: each job has the value that it has written.
    recorded = Path(__file__).with_name("journal-0.1.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_text("".join(recorded))
    outcomes = [found for found in map(json.loads, recorded) if found["kind"] == "outcome"]
    written = {found["entry"]["job"]: found["after"] for found in outcomes}
    assert len(written) == 7
    assert factors(Journal.read(tmp_path)) == written
    assert 0 not in written.values()


def test_a_journal_that_cannot_be_read_is_an_error_not_an_empty_one(tmp_path):
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(JournalError, match="no copy of the journal can be read"):
        Journal.read(tmp_path)


def test_a_journal_opened_for_reading_refuses_to_write(roots):
    Journal.open(roots[0]).close()
    before = (roots[0] / "journal.jsonl").read_bytes()
    with pytest.raises(JournalError, match="reading only"):
        Journal.read(roots[0]).intend([(change(1), Entry.blank(change(1)).intended(change(1), 5.0))])
    assert (roots[0] / "journal.jsonl").read_bytes() == before


values = st.one_of(st.integers(-(2**31), 2**32), st.text(max_size=20))


@given(
    st.builds(
        Entry,
        st.builds(
            Applied,
            job_id=st.integers(1, 2**32),
            submit_time=st.integers(0, 2**33),
            site_factor=st.integers(-(2**31), 2**31),
            oversubscribe=st.none() | st.sampled_from(OverSubscribe),
            oversubscribe_before=st.none() | st.sampled_from(OverSubscribe),
            foreign=st.booleans(),
        ),
        st.dictionaries(st.sampled_from(Field), st.lists(values, min_size=1, max_size=3).map(tuple)),
        st.lists(values, max_size=3).map(tuple),
        st.floats(0, 2e9),
        st.none() | st.sampled_from(OverSubscribe),
    )
)
def test_an_entry_survives_the_journal_unchanged(entry):
    assert entry_from_json(json.loads(json.dumps(entry_to_json(entry)))) == entry


def test_an_entry_does_not_grow_with_the_values_that_were_written_or_may_have_been():
    entry = Entry.blank(change(1))
    for value in range(1, 100):
        entry = entry.intended(change(1, value), 5.0)
    assert entry.doubts[Field.SITE_FACTOR] == tuple(range(100 - MAX_DOUBTS, 100))
    for value in range(1, 100):
        entry = entry.landed(Field.SITE_FACTOR, value, 6.0)
    assert len(entry.previous) <= MAX_DOUBTS
