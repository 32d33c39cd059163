"""What several commands share: options, the configuration, and how answers are printed."""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rltuned.core.config import DEFAULT_PATH, Config, Effective, resolve
from rltuned.core.errors import ConfigError, EvaluationError, RltunedError, StateError

if TYPE_CHECKING:
    from rich.console import Console

    from rltuned.records.store import ModelStore

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE_OR_DASH = click.Path(dir_okay=False, allow_dash=True)
NUMBER = click.IntRange(min=1)


class Real(click.FloatRange):
    """A finite number between bounds; no comparison refuses NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


config_option = click.option(
    "--config",
    "config_path",
    type=FILE,
    help=f"Configuration file. [default: {DEFAULT_PATH} if it exists]",
)


def removed(option: str, instead: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option of before: whoever gives it is told what stands in its place."""

    def refuse(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"{option} is gone: {instead}")

    return click.option(option, hidden=True, expose_value=False, callback=refuse)


def job_number(name: str) -> int:
    """The number of the row that a job is, or would be, in the queue; a type of click.

    ``123``; ``123_4``: a task of an array, which waits as the array 123; ``123+1``: a component of a heterogeneous job,
    which has a number of its own. slurmctld hands these out one after the other (`_slurm_rpc_submit_batch_het_job`).
    """
    found = re.fullmatch(r"(\d{1,10})(?:_\d{1,10}|\+(\d{1,4}))?", name)
    if found is None or int(found[1]) < 1:
        raise click.BadParameter(f"{name!r} is not a job: 123, 123_4 (task of an array) or 123+1 (heterogeneous)")
    return int(found[1]) + int(found[2] or 0)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value for machines.")


TIME = "2026-11-23, 2026-11-23T10:05, 12:50, or 5m, 2h, 14d ago"
"""For the help of an option whose type is `epoch_of`."""


def epoch_of(value: str) -> float:
    """Epoch seconds of 2026-11-23, 2026-11-23T10:05 or 12:50 (when it was that last), all of this host's time zone, or
    of 5m, 2h, 3d ago; a type of click.
    """
    now = datetime.now(UTC).astimezone()
    try:
        if (ago := _span(value)) is not None:
            seconds = now.timestamp() - ago
        elif match := re.fullmatch(r"(\d{1,2}):(\d\d)", value):
            today = datetime.combine(now, time(int(match[1]), int(match[2])))
            seconds = (today if today.timestamp() <= now.timestamp() else today - timedelta(days=1)).timestamp()
        else:
            seconds = datetime.fromisoformat(value).timestamp()
        datetime.fromtimestamp(seconds, UTC).astimezone()  # it can be written, in this host's time zone, too
    except (ValueError, OverflowError, OSError):
        seconds = -1.0
    if seconds < 0.0:
        raise click.BadParameter(f"{value!r} is no time since 1970; write {TIME}")
    return seconds


def span(value: str) -> float:
    """Seconds of 5m, 2h or 3d, 30 years at most; a type of click."""
    from rltuned.controller.give_back.pause import LONGEST

    seconds = _span(value)
    if seconds is None or not 0.0 < seconds <= LONGEST:
        raise click.BadParameter(f"{value!r} is no duration; write 5m, 2h or 3d")
    return seconds


def _span(value: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", value)
    return None if match is None else float(match[1]) * {"m": 60.0, "h": 3600.0, "d": 86_400.0}[match[2]]


STORE_OPTION = click.option(
    "--store",
    "root",
    type=FOLDER,
    metavar="DIR",
    help="The model store. [default: that of policy.model]",
)


def model_store(root: Path | None, config_path: Path | None) -> "ModelStore":
    """The store that an option names, else that of the configuration. ConfigError: neither names one."""
    from rltuned.records.in_force import store_of
    from rltuned.records.store import ModelStore

    if root is not None:
        return ModelStore(root.absolute())
    model = load(config_path).config.policy.model
    if (found := store_of(model)) is None:
        raise ConfigError(
            f"policy.model is {model!r}, which is in no model store: name one with --store DIR, or set policy.model to "
            '"/var/lib/rltuned-models/current/model.json" (docs/learning.md)'
        )
    return ModelStore(found)


def of_daemon(config: Config, access: int = os.R_OK | os.X_OK) -> Config:
    """The configuration, for what works with the daemon's files, as far as os.access(2) has it; else StateError."""
    directory = config.state.directory
    closed = not os.access(directory, access)
    with contextlib.suppress(PermissionError):
        closed = closed and directory.exists()
    if closed and (remedy := _run_as(directory)):
        raise StateError(f"{directory} is not open to you{remedy}")
    return config


def _run_as(directory: Path) -> str:
    """As whom to run this command, as the end of a sentence; "" where this is the daemon's user, or nobody knows it."""
    from rltuned.core.safe_files import user_name, user_of

    user = user_of(directory)
    if user is None or os.geteuid() in {0, user}:
        return ""
    name, command = user_name(user), click.get_current_context().command_path
    return f": run it as {name} (as root: `runuser -u {name} -- {command} …`)"


def load(
    path: Path | None, flags: Mapping[str, tuple[Any, str]] | None = None, *, for_everybody: bool = False
) -> Effective:
    """The effective configuration of file, environment and flags; ConfigError where the named file or a value is wrong.
    `for_everybody`: the default file counts as absent for a user who may not read it.
    """
    chosen = path if path is not None else DEFAULT_PATH
    try:
        text: str | None = chosen.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(f"{path}: no such file; `rltuned config sample` prints one to start from") from None
        text = None
    except PermissionError as error:
        if path is not None or not for_everybody:
            remedy = _run_as(Config().state.directory)
            raise ConfigError(f"{chosen}: cannot be read: {error.strerror}{remedy}") from error
        text = None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen}: cannot be read: {error}") from error
    return resolve(text, str(chosen), os.environ, flags or {})


def console(*, stderr: bool = False) -> "Console":
    """Where sentences and tables go. In a file or a pipe none is wrapped or cut: grep finds them whole."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = 10_000
    return made


def emit(value: Any) -> None:
    """Print one JSON value."""
    click.echo(json.dumps(value, indent=2, sort_keys=True, default=str))


def remark(sentence: str) -> None:
    """Something that the user should know, and that stops nothing."""
    from rltuned.controller.tell.logs import printable

    click.echo(f"rltuned: {printable(sentence, len(sentence))}", err=True)


NICE = 10  # nice(1) of simulations where slurmctld runs


def slurmctld_runs(processes: Path = Path("/proc")) -> bool:
    """Whether slurmctld runs on this host, whoever's it is: long work must leave it the processor."""
    for comm in processes.glob("[0-9]*/comm"):
        try:
            if comm.read_text(encoding="utf-8", errors="replace").strip() == "slurmctld":
                return True
        except OSError:
            continue  # it has ended, or is hidden
    return False


def processes(workers: int | None, most: int | None = None) -> int:
    """Processes that simulate, of the `workers` that were asked for. Beside slurmctld: one unless more are, and
    slurmctld goes first; elsewhere one for each core that this process may use, at `most` so many.
    """
    if slurmctld_runs():
        with contextlib.suppress(OSError):  # a unit's filter may forbid it; it is nice itself
            os.nice(NICE)
        if workers is None:
            remark(f"slurmctld runs on this host: one process with nice {NICE} simulates; --workers N takes more")
        return workers or 1
    cores = len(os.sched_getaffinity(0))
    return workers or min(cores, most or cores)


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """Around what only looks at options: whatever is wrong there is wrong usage, with one exit code."""
    try:
        yield
    except (ConfigError, EvaluationError) as error:
        raise click.UsageError(str(error)) from error


def check_outputs(files: Mapping[str, Path | None]) -> None:
    """Refuse, by option, what could not be written after the work: UsageError. No directory is ever made."""
    for option, path in files.items():
        if path is not None:
            if not path.parent.is_dir():
                raise click.UsageError(f"{option}: {path} cannot be written: there is no directory {path.parent}")
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise click.UsageError(f"{option}: {path} cannot be written: {path.parent} is not yours")


def write(path: Path, content: str, **how: Any) -> None:
    """Write a file whole or not at all, `how` as of `safe_files.write_atomic`. RltunedError: it cannot be written."""
    from rltuned.core.safe_files import write_atomic

    try:
        write_atomic(path, content.encode(), **how)
    except OSError as error:
        raise RltunedError(f"{path}: cannot be written: {error.strerror or error}") from error


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the user gave."""
    return {name: value for name, value in options.items() if value is not None}
