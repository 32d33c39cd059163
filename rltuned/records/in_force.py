"""Which version of a model store (`store`) is in force: what a daemon asks in each cycle."""

import re
from pathlib import Path
from typing import Final

CURRENT: Final = "current"
MODEL_FILE: Final = "model.json"
VERDICT_FILE: Final = "verdict.json"
NUMBER: Final = re.compile(r"\d{4,9}")


def store_of(model: str) -> Path | None:
    """The store that the configuration's `policy.model` is in; None: it is in none."""
    path = Path(model)
    inside = path.is_absolute() and path.parent.name == CURRENT and path.name == MODEL_FILE
    return path.parent.parent if inside else None


def mark(model: str) -> tuple[int, ...] | None:
    """Changes whenever the store that `model` is in has another version in force, or another verdict about it.

    None: `model` is in no store. Opens no file: a cycle may ask each time.
    """
    if store_of(model) is None:
        return None
    found = [number_of(model)]
    for path in (Path(model), Path(model).parent / VERDICT_FILE):
        try:
            status = path.stat()
        except OSError:
            found.append(0)
        else:
            found += (status.st_ino, status.st_mtime_ns, status.st_size)
    return tuple(found)


def number_of(model: str) -> int:
    """The version in force of the store that `model` is in; 0: none."""
    root = store_of(model)
    return 0 if root is None else target(root)


def target(root: Path) -> int:
    """Number of the version that `current` names; 0: none."""
    try:
        name = (root / CURRENT).readlink().name
    except OSError:
        return 0
    return int(name) if NUMBER.fullmatch(name) else 0
