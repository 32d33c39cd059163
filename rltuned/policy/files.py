"""Model files on disk. With `rltuned.policy.store` the only module of the decision's layers that opens a file."""

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.errors import ModelError
from rltuned.policy.actor import Actor, Architecture
from rltuned.policy.manifest import (
    GOLDEN_TOLERANCE,
    MAX_MANIFEST_BYTES,
    MAX_WEIGHTS_BYTES,
    NAME,
    Parsed,
    TrainingPart,
    parse,
    parse_manifest,
    render,
)
from rltuned.safe_files import write_atomic

MODEL_MODE: Final = 0o666
"""Less the umask: models are no secret."""


@dataclass(frozen=True)
class ModelInfo:
    """What `rltuned model info` prints."""

    name: str
    path: Path
    """Of the manifest."""
    format_version: int
    columns: tuple[str, ...]
    architecture: Architecture
    summary: str
    """What decides the order."""
    sha256: str
    """Of the weights file."""
    method: str
    data: str
    traces: Mapping[str, str]
    seed: int
    revision: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Check:
    """One thing that was found in order."""

    name: str
    detail: str


@dataclass(frozen=True)
class Verification:
    """What `rltuned model verify` prints. Exists only for a model that passed; one that did not is a `ModelError`."""

    path: Path
    checks: tuple[Check, ...]


def model_directory() -> Path:
    """Where the shipped models are: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "models"
    return installed if installed.is_dir() else package.parent / "models"


def shipped() -> tuple[str, ...]:
    """Names of the shipped models."""
    return tuple(sorted(path.stem for path in model_directory().glob("*.json")))


def manifest_path(name_or_path: str) -> Path:
    """Of a shipped model by name, or of any model by the absolute path of its manifest.

    Raises:
        ModelError: neither a name nor an absolute path of a .json file.
    """
    if NAME.fullmatch(name_or_path):
        path = model_directory() / f"{name_or_path}.json"
        if not path.exists():
            raise ModelError(f"there is no shipped model '{name_or_path}'; there are: {', '.join(shipped()) or 'none'}")
        return path
    path = Path(name_or_path)
    if not path.is_absolute() or path.suffix != ".json":
        raise ModelError(
            f"{name_or_path!r} is neither the name of a shipped model nor the absolute path of a .json manifest"
        )
    return path


def load(name_or_path: str) -> Actor:
    """The actor of a model, after every check.

    Raises:
        ModelError: the model was refused; the message names file and reason.
    """
    path = manifest_path(name_or_path)
    return _read_model(path).actor


def content(name_or_path: str) -> tuple[bytes, str, bytes]:
    """The files of a model that `load` would take: manifest, name of the weights' file, weights.

    Raises:
        ModelError: as `load`.
    """
    path = manifest_path(name_or_path)
    manifest, weights, data = _read_files(path)
    parse(manifest, data, str(path))
    return manifest, weights, data


def info(name_or_path: str) -> ModelInfo:
    """What a model is and how it was made.

    Raises:
        ModelError: as `load`; nothing is told about a model that would not be used.
    """
    path = manifest_path(name_or_path)
    parsed = _read_model(path)
    manifest = parsed.manifest
    return ModelInfo(
        name=manifest.name,
        path=path,
        format_version=manifest.format_version,
        columns=tuple(manifest.features),
        architecture=parsed.actor.architecture,
        summary=parsed.actor.summary,
        sha256=manifest.weights.sha256,
        method=manifest.training.method,
        data=manifest.training.data,
        traces=manifest.training.traces,
        seed=manifest.training.seed,
        revision=manifest.training.revision,
        settings=manifest.training.settings,
        metrics=manifest.metrics,
    )


def manifest_sha256(name_or_path: str) -> str:
    """Of the manifest's bytes: pins the whole model, because `load` holds the weights to the sha256 that is in it.

    Raises:
        ModelError: there is no such file, or it is none that would be read.
    """
    return hashlib.sha256(_read(manifest_path(name_or_path), MAX_MANIFEST_BYTES)).hexdigest()


def verify(name_or_path: str) -> Verification:
    """Check a model as `load` does and say what was checked.

    Raises:
        ModelError: as `load`, on the first thing that is wrong.
    """
    path = manifest_path(name_or_path)
    parsed = _read_model(path)
    manifest, architecture = parsed.manifest, parsed.actor.architecture
    checks = (
        Check("files", f"{path.name} and {manifest.weights.file}: regular files below the size limit"),
        Check("format", f"version {manifest.format_version}"),
        Check("features", ", ".join(manifest.features)),
        Check("sha256", manifest.weights.sha256),
        Check("weights", f"{architecture.parameters} finite float32 numbers in the shapes of the architecture"),
        Check(
            "golden",
            f"{len(manifest.golden.scores)} scores within {parsed.golden_error:.1e} (limit {GOLDEN_TOLERANCE:g})",
        ),
    )
    return Verification(path, checks)


def save(
    actor: Actor,
    directory: Path,
    training: TrainingPart,
    metrics: Mapping[str, float],
    golden_state: npt.NDArray[np.float32],
    golden_base: Floats | None = None,
) -> Path:
    """Write ``<actor.name>.json`` and ``.safetensors`` into `directory`, and give the manifest's path.

    The same values make the same bytes (see `rltuned.policy.manifest.render`). What is written is checked as `load`
    would, before it replaces anything.

    Raises:
        ModelError: the model would be refused, or cannot be written.
    """
    return _write(actor.name, directory, *render(actor, training, metrics, golden_state, golden_base))


def _write(name: str, directory: Path, manifest: bytes, weights: bytes) -> Path:
    path = directory / f"{name}.json"
    parse(manifest, weights, str(path))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Weights first: until the manifest follows, a reader sees a sha256 that does not match, and refuses.
        write_atomic(directory / f"{name}.safetensors", weights, mode=MODEL_MODE)
        write_atomic(path, manifest, mode=MODEL_MODE)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _read_model(path: Path) -> Parsed:
    manifest, _, weights = _read_files(path)
    return parse(manifest, weights, str(path))


def _read_files(path: Path) -> tuple[bytes, str, bytes]:
    manifest = _read(path, MAX_MANIFEST_BYTES)
    # The name of the weights was checked to be a plain one, so that they cannot be elsewhere.
    weights = parse_manifest(manifest, str(path)).weights.file
    return manifest, weights, _read(path.parent / weights, MAX_WEIGHTS_BYTES)


def _read(path: Path, limit: int) -> bytes:
    """Content of a regular file of at most `limit` bytes. What was opened is what is checked: no race."""
    try:
        # Non-blocking: opening a named pipe must not wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise ModelError(f"{path}: a symbolic link; give the file itself") from error
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{path}: cannot be read: {reason}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ModelError(f"{path}: not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise ModelError(f"{path}: larger than {limit} bytes")
    return data
