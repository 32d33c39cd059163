"""What several commands share: options, the configuration, and how answers are printed."""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from rltuned.config import DEFAULT_PATH, Effective, resolve
from rltuned.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FINDINGS = 10
"""`doctor` found an error, `restore` left something (docs/exit-codes.md)."""

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help=f"Configuration file. [default: {DEFAULT_PATH} if it exists]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value for machines.")


class MomentType(click.ParamType[float]):
    """A time: 2026-11-23, 2026-11-23T10:05 (this host's time zone), or so long ago: 14d, 12h, 30min."""

    name = "time"
    _AGO = re.compile(r"(\d+(?:\.\d+)?)(min|h|d)")
    _SECONDS = MappingProxyType({"min": 60.0, "h": 3600.0, "d": 86_400.0})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Epoch seconds."""
        if isinstance(value, float):
            return value
        if match := self._AGO.fullmatch(value):
            return datetime.now(UTC).timestamp() - float(match[1]) * self._SECONDS[match[2]]
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time; write 2026-11-23, 2026-11-23T10:05, or 14d for 14 days ago", param, ctx)


MOMENT = MomentType()


def load(path: Path | None, flags: Mapping[str, tuple[Any, str]] | None = None) -> Effective:
    """The effective configuration of file, environment and flags.

    Raises:
        ConfigError: the named file does not exist or anything in it is wrong.
    """
    chosen = path if path is not None else DEFAULT_PATH
    try:
        text: str | None = chosen.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(
                f"{path}: no such file; `rltuned show-config --sample` prints one to start from"
            ) from None
        text = None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen}: cannot be read: {error}") from error
    return resolve(text, str(chosen), os.environ, flags or {})


def console(*, stderr: bool = False) -> "Console":
    """Where tables go."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def emit(value: Any) -> None:
    """Print one JSON value."""
    click.echo(json.dumps(value, indent=2, sort_keys=True, default=str))


def remark(sentence: str) -> None:
    """Something that the user should know, and that stops nothing."""
    click.echo(f"rltuned: {sentence}", err=True)


def slurm_options(options: dict[str, Any]) -> dict[str, Any]:
    """Takes those of --executor slurm out of the options."""
    return {name.removeprefix("slurm_"): options.pop(name) for name in list(options) if name.startswith("slurm_")}
