"""The decision record on disk: what ``rltuned explain`` reads. The last cycle's, whole or not at all, bounded in size."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rltuned.daemon.apply import Result
from rltuned.daemon.files import write_atomic
from rltuned.errors import RltunedError

FILE_NAME: Final = "decision.json"
MAX_BYTES: Final = 32 * 1024 * 1024
"""A record of 10,000 managed jobs takes about 2 MB."""


def with_outcomes(record: dict[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """The record with what became of its changes: job id → field → outcome."""
    outcomes: dict[str, dict[str, str]] = {}
    for change, outcome, _ in results:
        outcomes.setdefault(str(change.job_id), {})[change.field.value] = outcome.value
    return record | {"outcomes": outcomes}


def save(directory: Path, record: Mapping[str, Any], limit: int = MAX_BYTES) -> str:
    """Write the record. Returns why not, "" when it was written; an old record then stays."""
    data = json.dumps(record, separators=(",", ":"), allow_nan=False, default=str).encode()
    if len(data) > limit:
        return f"decision record of {len(data)} bytes is above the limit of {limit}"
    try:
        # Not durable: it describes a moment, and a cycle must not wait for the disk twice.
        write_atomic(directory / FILE_NAME, data, durable=False)
    except OSError as error:
        return f"{directory / FILE_NAME}: {error.strerror}"
    return ""


def load(directory: Path) -> dict[str, Any]:
    """The last record.

    Raises:
        RltunedError: there is none, or it cannot be read; says what to do.
    """
    path = directory / FILE_NAME
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RltunedError(
            f"{path}: no decision record yet; is the daemon running? (`rltuned plan` makes one)"
        ) from None
    except (OSError, ValueError) as error:
        raise RltunedError(f"{path}: cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise RltunedError(f"{path}: not a decision record")
    return record
