"""What is on a disk: there before Slurm hears of it, written through no link of somebody else's, read up to a size."""

import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from unit.controller.support import as_user
from unit.controller.test_journal import write_a_cycle
from unit.controller.test_loop import house
from unit.controller.test_user_records import records

from rltuned.controller.cycle import lending
from rltuned.controller.health import heartbeat
from rltuned.controller.health.clock import Moment
from rltuned.controller.learnt import history, start_times
from rltuned.controller.users import user_records
from rltuned.controller.write.journal import FILE_NAME, Journal
from rltuned.core import safe_files
from rltuned.core.config import UsersSection
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import write
from rltuned.records import published
from rltuned.records.store import ModelStore

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="what others do to root")


def test_what_may_be_on_a_job_and_who_lends_for_it_has_reached_the_disk_before_slurm_hears_of_it(tmp_path, monkeypatch):
    on_disk, lacking, really = {}, [], os.fsync

    def sync(fd):
        really(fd)
        found, path = os.fstat(fd), Path(f"/proc/self/fd/{fd}")
        on_disk[found.st_ino] = {one.stat().st_ino for one in path.iterdir()} if path.is_dir() else found.st_size

    def look(_number):
        for path in (
            tmp_path / "state" / FILE_NAME,
            tmp_path / "mirror" / FILE_NAME,
            tmp_path / "state" / "loans.json",
        ):
            found, folder = path.stat(), path.parent.stat()
            if on_disk.get(found.st_ino) != found.st_size or found.st_ino not in on_disk.get(folder.st_ino, ()):
                lacking.append(path)

    monkeypatch.setattr(os, "fsync", sync)
    run = house(tmp_path)
    run.slurm.before_update = look
    run.tick()
    run.slurm.start(12)
    run.slurm.submit(500, time_limit=5.0)
    run.tick()
    assert run.slurm.updates > 11
    assert lacking == []


# --- links


@pytest.fixture
def precious(tmp_path):
    path = tmp_path / "of-roots"
    path.write_text("precious")
    return path


def beside(opens, act, call):
    """`call`, while somebody acts as soon as a file is about to be opened of which `opens` (path, flags) says so."""

    def there():
        def look(event, arguments):
            if event == "open" and opens(str(arguments[0]), arguments[2]):
                act()

        sys.addaudithook(look)  # for good: hence in a process of its own
        with suppress(OSError, RltunedError):
            call()

    as_user(0, there)


def write_atomic(directory):
    safe_files.write_atomic(directory / "x", b"of the daemon")


def write_record(directory):
    user_records._replace(os.open(directory, os.O_RDONLY), "x", b"of the daemon", 0)


@as_root
@pytest.mark.parametrize("write", [write_atomic, write_record])
def test_who_puts_a_link_in_the_place_of_a_new_file_has_nothing_written_through_it(tmp_path, precious, write):
    def link():
        for name in (".x.tmp", f".x.{os.getpid()}.tmp"):
            with suppress(FileExistsError):
                (tmp_path / name).symlink_to(precious)

    beside(lambda path, _: path.endswith(".tmp"), link, lambda: write(tmp_path))
    assert precious.read_text() == "precious"


@as_root
def test_who_puts_a_link_in_the_place_of_the_journal_has_nothing_written_through_it(tmp_path, precious):
    path = tmp_path / "state" / FILE_NAME

    def swap():
        if not path.is_symlink():
            shutil.move(path, precious)  # of the very same size
            path.symlink_to(precious)

    def write():
        write_a_cycle(Journal.open(tmp_path / "state"), [1], 100)

    beside(lambda opened, flags: opened == str(path) and flags & os.O_APPEND, swap, write)
    assert precious.read_text().count("\n") == 1


# --- sizes


def written(directory, name):
    """A file that the daemon writes: its module, the name of its limit, its path, and whether what is there is used."""
    run = house(directory)
    run.tick()
    path, runtime = directory / "state" / name, run.daemon.runtime
    match name:
        case "loans.json":
            return lending, "MOST_BYTES", path, lambda: bool(lending.read_book(path.parent))
        case "history.json":
            write(path, history.Known().kept())
            return history, "MAX_BYTES", path, lambda: bool(history.load(path.parent))
        case "start-times.json":
            known = start_times.StartTimes(lambda _: None, lambda: None, runtime)
            known.save()
            return start_times, "MAX_BYTES", path, lambda: (known.load(), not run.events("forecast.unreadable"))[1]
    assert not user_records.write_all_records(directory, records("root"))
    settings = UsersSection(directory=directory)
    return published, "MOST_BYTES", directory / "0" / name, lambda: bool(published.fetch(settings, 0))


@pytest.mark.parametrize(
    "name", ["loans.json", "history.json", "start-times.json", pytest.param("jobs.json", marks=as_root)]
)
def test_a_file_that_is_longer_than_its_limit_is_not_read_to_its_end(tmp_path, monkeypatch, name):
    module, limit, path, used = written(tmp_path, name)
    path.write_bytes(b" " * 10_000 + path.read_bytes())
    assert used()
    monkeypatch.setattr(module, limit, 10_000)
    with suppress(RltunedError):
        assert not used()


def mangled(text):
    """Of a file: lists without end, and each number as one that is none."""
    yield from ("", "null", "[]", '{"a":' * 5000, "[" * 100_000)
    for found in re.finditer(r"(?<=[:\[, ])-?[0-9][0-9.]*", text):
        for number in ("NaN", "-Infinity", "1e999", "1" + "0" * 400):
            yield text[: found.start()] + number + text[found.end() :]


@pytest.mark.parametrize("name", ["loans.json", "history.json", "heartbeat.json", "published.json", "uses.json"])
def test_what_is_no_such_file_is_refused_and_ends_nothing(tmp_path, name):
    here, path = Moment(2.0, 2.0, "h", "b"), tmp_path / name
    match name:
        case "loans.json" | "history.json":
            *_, path, _ = written(tmp_path, name)
            good = path.read_text()
        case "heartbeat.json":
            assert heartbeat.beat([tmp_path], here, 60.0)
            good = path.read_text()
        case "published.json":
            good = '{"time": 1.0, "interval": 60.0}'
        case _:
            good = '[{"version": 1, "since": 1.0, "why": "", "back": true, "watched": true}]'
    read = {
        "loans.json": lambda: lending.read_book(path.parent),
        "history.json": lambda: history.load(path.parent),
        "heartbeat.json": lambda: heartbeat.fresh_heartbeat(300.0, here, path.parent),
        "published.json": lambda: published.published(path.parent),
        "uses.json": lambda: ModelStore(path.parent).uses() or None,
    }[name]
    path.write_text(good)
    assert read() is not None
    for text in mangled(good):
        path.write_text(text)
        with suppress(RltunedError):
            assert read() is None, text[:300]
