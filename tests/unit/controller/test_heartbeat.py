"""The sign of life, told from a stale one whatever somebody does to the clocks."""

import json
from dataclasses import replace

import pytest
from unit.controller.model_slurm import VirtualClock

from rltuned.controller.health.clock import Moment
from rltuned.controller.health.heartbeat import beat, fresh_heartbeat, read_heartbeat

HOUR = 3600.0


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def stale(tmp_path, clock):
    """A heartbeat is written; the value asks whether it is stale by now."""
    beat([tmp_path], Moment.of(clock), 600.0)
    return lambda **other: fresh_heartbeat(300.0, replace(Moment.of(clock), **other), tmp_path) is None


def test_it_is_stale_when_it_is_missing_damaged_or_older_than_several_cycles(tmp_path, clock, stale):
    clock.sleep(600.0)
    assert not stale()
    clock.sleep(1.0)
    assert stale()
    beat([tmp_path], Moment.of(clock), 600.0)
    assert not stale()
    (tmp_path / "heartbeat.json").write_text("{")
    assert stale()
    (tmp_path / "heartbeat.json").unlink()
    assert stale()


@pytest.mark.parametrize("seconds", [301.0, 48 * HOUR, -301.0, -48 * HOUR])
def test_a_wall_clock_that_was_set_changes_nothing(clock, stale, seconds):
    clock.set(seconds)
    assert not stale()
    clock.sleep(601.0)
    assert stale()


def test_a_machine_that_was_suspended_gives_its_daemon_time_to_beat_again(clock, stale):
    clock.suspend(12 * HOUR)
    assert not stale()
    clock.sleep(601.0)
    assert stale()


def test_a_host_that_was_started_anew_has_no_daemon_of_the_time_before(tmp_path, clock, stale):
    assert stale(boot="another")
    # Where the boot's id is hidden (ProcSubset=pid in the units) its clock still tells, in time.
    assert stale(boot="", monotonic=clock.monotonic() - 1.0)
    assert not stale(boot="", monotonic=clock.monotonic() + 600.0)
    assert stale(boot="", monotonic=clock.monotonic() + 601.0)


@pytest.mark.parametrize("ahead", [1, -1])
def test_another_host_goes_by_the_wall_clock(clock, stale, ahead):
    other = {"host": "another", "boot": "another", "monotonic": 5.0}
    assert not stale(**other, time=clock.time() + ahead * 600.0)
    assert stale(**other, time=clock.time() + ahead * 601.0)


def test_a_host_whose_name_changes_is_known_by_its_boot(clock, stale):
    clock.set(48 * HOUR)
    assert stale(host="another", boot="another")
    assert not stale(host="renamed")


def test_of_two_copies_the_younger_one_counts_though_the_older_one_has_the_later_wall_clock(tmp_path, clock):
    broken, working = tmp_path / "broken", tmp_path / "working"
    broken.mkdir()
    working.mkdir()
    beat([broken], Moment.of(clock), 600.0)
    clock.sleep(1000.0)
    clock.set(-48 * HOUR)
    beat([working], Moment.of(clock), 600.0)
    for directories in ((broken, working), (working, broken)):
        assert fresh_heartbeat(300.0, Moment.of(clock), *directories)
        assert read_heartbeat(Moment.of(clock), *directories) == read_heartbeat(Moment.of(clock), working)


def test_what_a_newer_daemon_adds_to_it_is_no_obstacle(tmp_path, clock, stale):
    path = tmp_path / "heartbeat.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"more": [1, 2]}))
    assert not stale()
