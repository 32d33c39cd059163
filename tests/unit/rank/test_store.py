"""The model store: which version is in force, what is kept, and what is refused."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from unit.rank.conftest import saved

from rltuned.cli.main import cli
from rltuned.core.errors import LockedError, ModelError
from rltuned.records import model_files as files
from rltuned.records.in_force import mark, number_of, store_of
from rltuned.records.store import KEPT, ModelStore


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "store")


@pytest.fixture
def models(tmp_path):
    """Paths of models, each another one."""

    def made(seed):
        return str(saved(tmp_path / f"made-{seed}", "site", seed))

    return made


def served(store):
    """What the daemon reads."""
    return files.load(str(store.root / "current" / "model.json"))


def put(store, model, now, **facts):
    version = store.add(model, now, "a test", **facts)
    store.use(version, now, "for a test")
    return version


def test_a_version_in_force_is_what_the_daemon_reads_and_the_one_before_comes_back(store, models):
    kernels = [files.load(models(seed)).weights["kernel"].tolist() for seed in (1, 2)]
    first = put(store, models(1), 1.0)
    second = store.add(models(2), 2.0, "a test")
    store.use(second, 2.0, "for a test", watched=True)
    assert served(store).weights["kernel"].tolist() == kernels[1]
    assert (store.current(), store.before()) == (second, first)
    assert store.rollback(3.0, "it waits longer") == first
    assert served(store).weights["kernel"].tolist() == kernels[0]
    assert [(use.version, use.since, use.back, use.watched) for use in store.uses()] == [
        (1, 1.0, False, False),
        (2, 2.0, False, True),
        (1, 3.0, True, False),
    ]


def test_what_was_given_up_does_not_come_back_by_a_second_rollback(store, models):
    for number in (1, 2, 3):
        put(store, models(number), float(number))
    assert [store.rollback(4.0, "").number, store.rollback(5.0, "").number] == [2, 1]
    with pytest.raises(ModelError, match="no version was in force before"):
        store.rollback(6.0, "")
    assert store.current().number == 1


def test_the_same_model_is_kept_once_and_takes_a_new_verdict(store, models):
    first = store.add(models(1), 1.0, "a", verdict=b"old")
    again = store.add(models(1), 2.0, "b", verdict=b"new")
    assert again == first
    assert first.verdict.read_bytes() == b"new"
    assert len(store.versions()) == 1


def test_old_versions_go_but_never_the_one_in_force_nor_the_one_before(store, models):
    put(store, models(1), 1.0)
    put(store, models(2), 2.0)
    for number in range(3, 3 + KEPT + 4):
        store.add(models(number), float(number), "not accepted")
    store.use(store.version(2), 99.0, "again")
    there = [version.number for version in store.versions()]
    assert len(there) == KEPT
    assert there[:2] == [1, 2]
    assert there[-1] == 2 + KEPT + 4


def test_a_damaged_version_does_not_come_into_force(store, models):
    first = put(store, models(1), 1.0)
    second = store.add(models(2), 2.0, "a test")
    weights = next(second.path.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(ModelError, match="sha256"):
        store.use(second, 3.0, "")
    assert store.current() == first
    served(store)


def test_a_version_that_cannot_be_understood_is_not_written_over(store, models):
    put(store, models(1), 1.0)
    second = store.add(models(2), 2.0, "a test")
    (second.path / "version.json").write_text("{")
    before = sorted(path.name for path in second.path.iterdir())
    with pytest.raises(ModelError, match="the model store cannot be written"):
        store.add(models(3), 3.0, "a test")
    assert sorted(path.name for path in second.path.iterdir()) == before
    assert len(store.versions()) == 1


def test_a_program_that_ended_half_way_leaves_a_store_that_works(store, models):
    put(store, models(1), 1.0)
    second = put(store, models(2), 2.0)
    partial = store.root / "versions" / ".0003.partial"
    partial.mkdir()
    (partial / "model.json").write_text("{")
    # Between the link and the list of uses: the link counts.
    (store.root / "current").unlink()
    (store.root / "current").symlink_to("versions/0001")
    assert store.current().number == 1
    assert store.uses()[-1].version == 1
    third = put(store, models(3), 4.0)
    assert third.number == 3
    assert store.before().number == 1
    assert second in store.versions()


@pytest.mark.parametrize("file", ["current", "uses.json"])
def test_what_was_in_force_before_is_known_wherever_a_change_was_cut_off(store, models, monkeypatch, file):
    for number in (1, 2):
        put(store, models(number), float(number))
    third = store.add(models(3), 3.0, "a test")
    before, replace = store.uses(), os.replace

    def killed(source, target):
        if Path(target).name == file:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("os.replace", killed)
    monkeypatch.setattr("os.rename", killed)
    with pytest.raises(KeyboardInterrupt):
        store.use(third, 3.0, "for a test", watched=True)
    monkeypatch.undo()
    assert (store.current().number, store.before().number, store.uses()) == (2, 1, before)
    store.use(third, 4.0, "again")
    assert [use.since for use in store.uses()] == [1.0, 2.0, 4.0]
    assert store.rollback(5.0, "it waits longer").number == 2


def test_a_version_that_was_put_in_by_hand_takes_no_history_away(store, models):
    for number in (1, 2):
        put(store, models(number), float(number))
    store.add(models(3), 3.0, "a test")
    (store.root / "current").unlink()
    (store.root / "current").symlink_to("versions/0003")
    assert [use.version for use in store.uses()] == [1, 2]
    assert store.rollback(4.0, "it waits longer").number == 2


def test_two_do_not_change_a_store_at_the_same_time(store):
    with store.locked(), pytest.raises(LockedError, match="another rltuned works"), ModelStore(store.root).locked():
        pass
    with store.locked():
        pass


def test_a_mark_changes_with_the_version_and_with_its_verdict_and_with_nothing_else(store, models, tmp_path):
    model = str(store.root / "current" / "model.json")
    seen = [mark(model)]
    for change in (
        lambda: put(store, models(1), 1.0),
        lambda: store.renew(store.version(1), b"one"),
        lambda: store.renew(store.version(1), b"two"),
        lambda: put(store, models(2), 2.0),
    ):
        change()
        seen.append(mark(model))
    assert len(set(seen)) == len(seen)
    store.add(models(3), 3.0, "not in force")
    assert mark(model) == seen[-1]
    assert number_of(model) == 2
    for outside in ("general", str(tmp_path / "model.json"), "current/model.json"):
        assert store_of(outside) is None
        assert mark(outside) is None


def typed(*words):
    return CliRunner().invoke(cli, ["model", *map(str, words)], catch_exceptions=False)


def test_the_commands_bring_versions_into_force_and_back(store, models):
    assert "no version yet" in typed("list", "--store", store.root).stdout
    assert "version 1 is in force" in typed("use", "general", "--store", store.root).stdout
    assert "version 2 is in force" in typed("use", models(2), "--store", store.root).stdout
    lines = typed("list", "--store", store.root).stdout.splitlines()
    assert [line[:3] for line in lines] == ["  1", "* 2"]
    assert "verdict: none" in lines[1]
    assert "version 1 is in force again" in typed("rollback", "--store", store.root).stdout
    assert "version 2 is in force" in typed("use", 2, "--store", store.root).stdout
    with pytest.raises(ModelError, match="there is no version 7; there are: 1, 2"):
        typed("use", 7, "--store", store.root)


def test_without_a_store_the_command_says_how_to_name_one(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("")
    done = CliRunner().invoke(cli, ["model", "list", "--config", str(config)])
    assert "policy.model is 'general', which is in no model store" in str(done.exception)
