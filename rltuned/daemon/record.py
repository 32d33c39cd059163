"""The decision record on disk, which ``rltuned explain`` and ``rltuned doctor`` read.

The last cycle's, whole or not at all, bounded in size.
"""

import json
from pathlib import Path
from typing import Final

from rltuned.daemon.files import write_atomic
from rltuned.decide.decision import DecisionRecord
from rltuned.errors import RltunedError

FILE_NAME: Final = "decision.json"
MAX_BYTES: Final = 32 * 1024 * 1024
"""A record of 10,000 managed jobs takes about 2 MB."""


def save(directory: Path, record: DecisionRecord, limit: int = MAX_BYTES) -> str:
    """Write the record. Returns why not, "" when it was written; an old record then stays."""
    data = json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False).encode()
    if len(data) > limit:
        return f"decision record of {len(data)} bytes is above the limit of {limit}"
    try:
        # Not durable: it describes a moment, and a cycle must not wait for the disk twice.
        write_atomic(directory / FILE_NAME, data, durable=False)
    except OSError as error:
        return f"{directory / FILE_NAME}: {error.strerror}"
    return ""


def load(directory: Path) -> DecisionRecord:
    """The last record.

    Raises:
        RltunedError: there is none, or it cannot be read; names file and field, and says what to do.
    """
    path = directory / FILE_NAME
    try:
        return DecisionRecord.from_json(path.read_bytes())
    except FileNotFoundError:
        raise RltunedError(
            f"{path}: no decision record yet; is the daemon running? (`rltuned plan` makes one)"
        ) from None
    except OSError as error:
        raise RltunedError(f"{path}: cannot be read: {error}") from error
    except RltunedError as error:
        raise RltunedError(f"{path}: {error}; wait for the next cycle of the running daemon") from error
