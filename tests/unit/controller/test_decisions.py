"""The record and the log of decisions: every cycle, bounded, readable after any crash, without text of users."""

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from unit.controller.support import files_no_longer_than
from unit.controller.test_loop import house
from unit.slurm.standin import StandIn, job

from rltuned.cli.main import cli
from rltuned.controller.tell.states import CycleOutcome
from rltuned.core.changes import Outcome
from rltuned.core.config import Stage
from rltuned.core.errors import ExitCode, RltunedError, SlurmUnavailableError
from rltuned.core.safe_files import encode
from rltuned.decide.explain import explain
from rltuned.records import decisions
from rltuned.records.decisions import (
    DAY,
    DIRECTORY,
    KEEP,
    MIB,
    RECORD,
    DecisionLog,
    entries,
    files,
    last_before,
    load,
    save,
)

ALWAYS = float("inf")


def kept(directory, since=0.0, until=ALWAYS):
    return list(entries(directory, since, until))


def logged(directory, entry, *times, size=1.0):
    """A log with the entry at each of these times, in seconds after 1e9."""
    log = DecisionLog(directory, size)
    for time in times:
        log.add(replace(entry, time=1e9 + time))
    return log


@pytest.fixture
def one(tmp_path_factory):
    """An entry of a real cycle."""
    directory = tmp_path_factory.mktemp("one")
    house(directory, jobs=40).tick()
    (entry,) = kept(directory / "state")
    return entry


# --- the record


def test_one_that_is_too_large_leaves_the_old_one(tmp_path, one, monkeypatch):
    save(tmp_path, one.decision)
    monkeypatch.setattr(decisions, "MAX_RECORD", 100)
    with pytest.raises(RltunedError, match="above the limit of 100"):
        save(tmp_path, one.decision)
    monkeypatch.undo()
    assert load(tmp_path) == one.decision, "it is read as it was written"


def test_what_cannot_be_used_is_named_with_its_file(tmp_path, one):
    with pytest.raises(RltunedError, match=r"no decision record yet.*systemctl start rltuned.*rltuned plan` shows"):
        load(tmp_path)
    save(tmp_path, one.decision)
    path = tmp_path / RECORD
    tree = json.loads(path.read_bytes())
    tree["jobs"]["base"][0] = None
    path.write_text(json.dumps(tree))
    with pytest.raises(RltunedError, match=rf"{path}: .*jobs\.base\.0: .*wait for the next cycle"):
        load(tmp_path)


# --- the log


@pytest.mark.parametrize("dry_run", [True, False])
def test_shadow_and_active_cycles_are_logged_alike_with_what_was_seen_wanted_and_done(tmp_path, dry_run):
    run = house(tmp_path, dry_run=dry_run)
    report = run.tick()
    run.ticks(2)
    first, _, last = kept(tmp_path / "state")
    assert first.stage is (Stage.SHADOW if dry_run else Stage.ACTIVE)
    assert first.seen.pending == first.wanted.managed == 12
    raised = len(report.record.raises)
    assert first.wanted.raised == first.wanted.changes == raised > 0
    assert sum(first.wanted.stopped.values()) == 12
    assert first.results == ({} if dry_run else {Outcome.APPLIED: raised})
    assert ("dry run" in first.held_back) is dry_run
    assert last.wanted.changes == (raised if dry_run else 0)
    assert first.decision.jobs.id == tuple(range(1, 13))
    assert set(first.seconds) >= {"read", "plan", "total"}


def test_a_cycle_that_fails_is_logged_with_its_cause(tmp_path):
    class Away:
        def __init__(self, slurm):
            self.slurm = slurm

        def __getattr__(self, name):
            raise SlurmUnavailableError("slurmctld is away")

    house(tmp_path, reader=Away).tick()
    (entry,) = kept(tmp_path / "state")
    assert entry.outcome == CycleOutcome.FAILED.value
    assert "slurmctld is away" in entry.sentence
    assert (entry.seen, entry.wanted, entry.decision) == (None, None, None)


def test_only_the_files_of_a_period_are_read_and_decisions_only_where_they_are_asked_for(tmp_path, one, monkeypatch):
    opened, lines = [], decisions._lines_of
    monkeypatch.setattr(decisions, "_lines_of", lambda path: opened.append(path) or lines(path))
    sly = replace(one, sentence='it says ,"decision":null}')
    for day in range(4):  # a file for each
        logged(tmp_path, sly, 87_000.0 * day, 87_000.0 * day + 5000.0)
    assert len(files(tmp_path / DIRECTORY)) == 4
    (entry,) = entries(tmp_path, 1e9 + 265_000.0, ALWAYS, decisions=False)
    assert replace(entry, decision=one.decision, time=one.time) == replace(sly, decision=one.decision)
    assert entry.decision is None
    assert opened == files(tmp_path / DIRECTORY)[-1:]
    assert len(kept(tmp_path, 1e9, 1e9 + 87_100.0)) == 3


def test_a_decision_is_read_as_it_was_but_for_what_the_policy_saw(tmp_path):
    run = house(tmp_path)
    report = run.tick()
    (entry,) = kept(tmp_path / "state")
    assert entry.decision.jobs == replace(report.record.jobs, site=None)
    assert entry.decision.changes == report.record.changes
    assert entry.decision.window.score == pytest.approx(report.record.window.score, abs=1e-6)
    assert entry.decision.features == ()
    whole, small = explain(report.record, 3), explain(entry.decision, 3)
    assert replace(whole, features=(), site_factor=None, score=pytest.approx(whole.score, abs=1e-6)) == small


def test_all_files_together_stay_below_the_limit_and_the_age(tmp_path, one):
    DecisionLog(tmp_path, 0.0).add(one)
    assert not list(tmp_path.iterdir()), "a limit of 0 keeps nothing"
    limit = 0.06
    log = DecisionLog(tmp_path, limit)
    for cycle in range(40 * 48):  # forty days, each half an hour
        log.add(replace(one, time=1e9 + 1800.0 * cycle))
        if cycle % 100 == 0:
            assert sum(path.stat().st_size for path in files(tmp_path / DIRECTORY)) <= limit * MIB
    end = 1e9 + 40 * DAY
    found = kept(tmp_path)
    assert end - found[0].time <= KEEP + 2 * DAY
    assert found[-1].time == end - 1800.0
    assert any(entry.decision is not None for entry in found[-48:])  # as many as fit
    assert any(entry.decision is None for entry in found[-48:])


def test_a_line_that_was_cut_off_costs_no_other(tmp_path, one):
    log = logged(tmp_path, one, 0, 30)
    (path,) = files(tmp_path / DIRECTORY)
    path.write_bytes(path.read_bytes()[:-40])
    assert last_before(tmp_path, 1e9 + 45.0).time == 1e9, "it does not hide the one before it"
    logged(tmp_path, one, 60)
    log.add(replace(one, time=1e9 + 120))
    assert [entry.time for entry in kept(tmp_path)] == [1e9, 1e9 + 60, 1e9 + 120]


def test_a_damaged_compressed_file_costs_only_what_comes_after_the_damage(tmp_path, one):
    logged(tmp_path, one, 0, DAY, 2 * DAY)
    oldest = files(tmp_path / DIRECTORY)[0]
    assert oldest.suffix == ".gz"
    oldest.write_bytes(oldest.read_bytes()[:60])
    assert [entry.time for entry in kept(tmp_path)] == [1e9 + DAY, 1e9 + 2 * DAY]


def test_a_crash_between_packing_and_deleting_shows_nothing_twice(tmp_path, one):
    logged(tmp_path, one, 0)
    (path,) = files(tmp_path / DIRECTORY)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    assert [entry.time for entry in kept(tmp_path)] == [1e9]


def test_a_full_disk_stops_no_cycle_and_is_said(tmp_path):
    run = house(tmp_path)
    run.tick()
    with files_no_longer_than(files(tmp_path / "state" / DIRECTORY)[0].stat().st_size + 100):
        run.tick()
    assert "File too large" in run.events("decision_log.not_written")[0]["detail"]
    run.tick()
    first, last = (entry.wanted.changes for entry in kept(tmp_path / "state"))
    assert (first > 0, last) == (True, 0)


def test_no_name_of_a_user_or_a_job_is_in_it(tmp_path):
    run = house(tmp_path)
    run.ticks(2)
    (path,) = files(tmp_path / "state" / DIRECTORY)
    text = path.read_text()
    snapshot = run.slurm.reader().snapshot(run.slurm.clock.time())
    names = set(snapshot.jobs.user.names)
    assert names
    for name in names:
        assert f'"{name}"' not in text
    assert set(json.loads(text.splitlines()[0])) == {
        *("format", "time", "outcome", "stage", "held_back", "sentence", "seen", "wanted"),
        *("results", "restored", "seconds", "decision"),
    }


def test_the_decision_that_held_at_a_time_is_found_among_many_files(tmp_path, one):
    times = [1e9 + step * 0.6 * DAY for step in range(6)]
    logged(tmp_path, one, *(time - 1e9 for time in times), size=256.0)
    assert len(files(tmp_path / DIRECTORY)) > 2
    assert [last_before(tmp_path, time + 5.0).time for time in times] == times
    with pytest.raises(RltunedError, match="no decision of that time"):
        last_before(tmp_path, 1e9 - 1.0)


def test_explain_answers_about_the_past_on_the_command_line(tmp_path, capsys):
    run = house(tmp_path)
    run.tick()
    then = run.slurm.clock.time() - 30.0
    run.slurm.jobs.pop(1)
    run.ticks(2)
    settings = tmp_path / "config.toml"
    settings.write_text(f'[state]\ndirectory = "{tmp_path / "state"}"\n[policy]\nname = "sjf"\n')
    when = datetime.fromtimestamp(then, UTC).isoformat()
    cli.main(["explain", "1", "--config", str(settings), "--at", when, "--json"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["slurm_rank"]) == ("left where Slurm has it", 1)
    assert answer["rank"] > 1, "others pass it"
    assert answer["stopped"] == "nobody whom it could pass is before it"
    cli.main(["explain", "1", "--config", str(settings), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["verdict"] == "not pending"


def test_explain_of_a_job_that_came_after_the_last_decision_says_so(tmp_path, capsys):
    run = house(tmp_path)
    run.tick()
    slurm = StandIn(tmp_path / "slurm")
    slurm.queue([job(77, Reason="QOSMaxJobsPerUserLimit")], factors={77: 0})
    settings = tmp_path / "config.toml"
    settings.write_text(f'[state]\ndirectory = "{tmp_path / "state"}"\n[slurm]\nbin_dir = "{slurm.bin_dir}"\n')
    code = cli.main(["explain", "77", "--config", str(settings)], standalone_mode=False)
    text = " ".join(capsys.readouterr().out.split())
    assert not code, "it does wait"
    assert "came after the last decision" in text
    assert "Your jobs use as much" in text
    assert "--fresh" in text
    slurm.queue([])
    assert cli.main(["explain", "77", "--config", str(settings)], standalone_mode=False) == ExitCode.ABSENT
    assert "it runs, has ended" in " ".join(capsys.readouterr().out.split())
    slurm.answer("status", "", "slurm_load_jobs error: Unable to contact slurm controller\n", 1)
    assert cli.main(["explain", "77", "--config", str(settings)], standalone_mode=False) == ExitCode.ABSENT
    assert "Slurm cannot be asked" in capsys.readouterr().err


def test_reading_while_the_daemon_packs_a_file_loses_nothing(tmp_path, one):
    log = logged(tmp_path, one, 0)
    (path,) = files(tmp_path / DIRECTORY)
    reader = decisions._lines_of(path)
    log.add(replace(one, time=1e9 + DAY))
    assert not path.exists()
    assert len(list(reader)) == 1


def test_after_a_clock_that_went_back_new_entries_are_found(tmp_path, one):
    logged(tmp_path, one, 10 * DAY)
    logged(tmp_path, one, 0)
    assert [entry.time for entry in kept(tmp_path, 1e9, 1e9 + DAY)] == [1e9]
    assert last_before(tmp_path, 1e9 + 60.0).time == 1e9


def test_an_entry_stamped_years_ahead_deletes_nothing(tmp_path, one):
    log = DecisionLog(tmp_path, 1.0)
    times = [1e9 + day * DAY for day in (0, 1, 2)]
    for time in (*times, 1e9 + 3650 * DAY, 1e9 + 3 * DAY):
        log.add(replace(one, time=time))
    assert [entry.time for entry in kept(tmp_path, until=1e9 + 4 * DAY)] == [*times, 1e9 + 3 * DAY]


def test_a_file_of_the_log_that_is_a_link_is_not_written_through(tmp_path, one):
    log = logged(tmp_path, one, 0.0)
    (path,) = files(tmp_path / DIRECTORY)
    path.rename(tmp_path / "of-roots")
    path.symlink_to(tmp_path / "of-roots")
    with pytest.raises(RltunedError, match="symbolic links"):
        log.add(replace(one, time=1e9 + 60.0))
    assert len((tmp_path / "of-roots").read_bytes().splitlines()) == 1


@pytest.mark.parametrize("change", [{"seconds": {"total": float("nan")}}, {"time": 1e30}])
def test_an_entry_that_cannot_be_written_is_said_and_raises_nothing(tmp_path, one, change):
    log = DecisionLog(tmp_path, 1.0)
    with pytest.raises(RltunedError, match=str(tmp_path)):
        log.add(replace(one, **change))
    log.add(replace(one, time=1e9))
    assert len(kept(tmp_path)) == 1


def test_what_a_crash_while_packing_left_goes_away(tmp_path, one):
    log = logged(tmp_path, one, 0)
    (path,) = files(tmp_path / DIRECTORY)
    half = path.with_name(f".{path.name}.gz.4711.tmp")
    half.write_bytes(b"half")
    log.add(replace(one, time=1e9 + DAY))
    log.add(replace(one, time=1e9 + 2 * DAY))
    packed = files(tmp_path / DIRECTORY)[0]
    twice = packed.with_suffix("")
    twice.write_bytes(gzip.decompress(packed.read_bytes()))
    log.add(replace(one, time=1e9 + 3 * DAY))
    assert not half.exists()
    assert not twice.exists()
    assert [entry.time for entry in kept(tmp_path)] == [1e9 + day * DAY for day in range(4)]


def test_on_a_full_disk_what_is_too_old_is_deleted_although_nothing_can_be_packed(tmp_path, one):
    log = logged(tmp_path, one, 0, DAY, 2 * DAY)
    late = 1e9 + KEEP + 3 * DAY
    log.add(replace(one, time=late - DAY))
    first = files(tmp_path / DIRECTORY)[0]
    with files_no_longer_than(10), pytest.raises(RltunedError, match="File too large"):
        log.add(replace(one, time=late))
    assert not first.exists()
    assert kept(tmp_path)[-1].time == late - DAY


@pytest.mark.parametrize(("jobs", "each"), [(30, 1), (100, 1), (300, 2)])
def test_sizes_are_as_docs_report_md_has_them(tmp_path, jobs, each):
    run = house(tmp_path, jobs=jobs, dry_run=True)
    run.ticks(6)
    found = kept(tmp_path / "state")
    there = [entry.decision is not None for entry in found]
    assert all(any(there[at : at + each]) for at in range(len(found) - each + 1))
    for entry in (one for one in found if one.decision is not None):
        without = len(encode(replace(entry, decision=None)))
        assert without <= 600
        assert 60 <= (len(encode(entry)) - without) / jobs <= 120
