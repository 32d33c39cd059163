"""Cluster shapes from files: `read_shape` is what `--cluster` takes."""

import json
from pathlib import Path

from rltuned.core.errors import ShapeError
from rltuned.simulate.shape import ClusterShape, from_json, parse_shape

MAX_BYTES = 16 * 2**20
"""No description of a cluster is larger; a trace given by mistake is."""


def read_shape(text_or_path: str | Path) -> ClusterShape:
    """The cluster that `--cluster` describes: ``20x8:p100`` (`simulate.shape`), or a file: what ends in .json or
    names an existing one.

    Raises:
        ShapeError: names the file and line, or the place, and the reason.
    """
    name = str(text_or_path)
    if not (name.endswith(".json") or isinstance(text_or_path, Path) or Path(name).is_file()):
        return parse_shape(name)
    try:
        with Path(name).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ShapeError(f"{name}: cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise ShapeError(f"{name}: too large for the description of a cluster")
    try:
        value = json.loads(raw.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise ShapeError(f"{name}:{error.lineno}: {error.msg} (column {error.colno})") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ShapeError(f"{name}: is no JSON: {error}") from error
    return from_json(value, Path(name).name)
