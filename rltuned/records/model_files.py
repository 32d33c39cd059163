"""Model files: what they must be, and how they are read and written (docs/decisions/0011 says what is refused and why).

A model is two files side by side: NAME.json (the manifest: what it is and how it was made) and NAME.safetensors (the
weights). Both are data: nothing in them is executed. With `rltuned.records.store` the only module of the decision's
layers that opens a file.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from rltuned.core.errors import ModelError
from rltuned.core.safe_files import write_atomic
from rltuned.core.tables import Floats
from rltuned.decide.rank.actor import MOMENT, RUN_TIME, Actor, shapes
from rltuned.decide.see.observation import STATE_COLUMNS

FORMAT_VERSION: Final = 2
"""Raised when a reader of the old form would misread the new one."""
GOLDEN_TOLERANCE: Final = 1e-5
"""Largest difference between the scores that this machine computes and those that the trainer wrote down."""
MAX_MANIFEST_BYTES: Final = 256 * 1024
MAX_WEIGHTS_BYTES: Final = 4 * 1024 * 1024
MODEL_MODE: Final = 0o666  # less the umask: models are no secret
_GOLDEN: Final = (
    f"the golden vector needs rows of {len(STATE_COLUMNS)} numbers, a moment of {len(MOMENT)}, and a score for each row"
)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class WeightsPart(_Part):
    """The file beside the manifest."""

    file: str
    sha256: str


class TrainingPart(_Part):
    """How it was made, so that it can be made again."""

    method: str  # "imitation", "ppo"
    data: str  # what it was trained on, in words
    traces: dict[str, str]  # sha256 of each trace by file name; empty where states were generated
    seed: int
    revision: str  # git revision of the code, "unknown" outside a checkout
    settings: dict[str, Any]


class GoldenPart(_Part):
    """Rows and the scores that they must get, on every machine."""

    terms: Annotated[list[list[float]], Field(min_length=1, max_length=256)]
    moment: list[float]
    scores: list[float]


class Manifest(_Part):
    """The JSON file of a model."""

    format: Literal["rltuned-model"]
    format_version: int
    name: str
    features: list[str]  # columns of the terms, in order: `STATE_COLUMNS`
    moment: list[str]  # what the network sees, in order: `MOMENT`
    hidden: Annotated[int, Field(ge=0, le=1024)]  # units of the network
    weights: WeightsPart
    training: TrainingPart
    metrics: dict[str, float]
    golden: GoldenPart


class VerifiedModel(NamedTuple):
    """A model that passed every check."""

    path: Path  # of the manifest
    content: tuple[bytes, bytes]  # manifest and weights
    manifest: Manifest
    actor: Actor
    golden_error: float  # largest difference to the golden scores


@dataclass(frozen=True)
class ModelInfo:
    """What `rltuned model info` prints; see `Manifest`."""

    name: str
    path: Path  # of the manifest
    format_version: int
    columns: tuple[str, ...]
    hidden: int
    summary: str  # what decides the order
    sha256: str  # of the weights file
    method: str
    data: str
    traces: Mapping[str, str]
    seed: int
    revision: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, float]


# --- reading


def manifest_path(name_or_path: str) -> Path:
    """Of a shipped model by name, or of any model by the absolute path of its manifest. ModelError: it is neither."""
    if _NAME.fullmatch(name_or_path):
        package = Path(__file__).resolve().parents[1]
        installed = package / "models"
        directory = installed if installed.is_dir() else package.parent / "models"  # of a checkout
        path = directory / f"{name_or_path}.json"
        if not path.exists():
            shipped = ", ".join(sorted(each.stem for each in directory.glob("*.json"))) or "none"
            raise ModelError(f"there is no shipped model '{name_or_path}'; there are: {shipped}")
        return path
    path = Path(name_or_path)
    if not path.is_absolute() or path.suffix != ".json":
        raise ModelError(
            f"{name_or_path!r} is neither the name of a shipped model nor the absolute path of a .json manifest"
        )
    return path


def read(name_or_path: str) -> VerifiedModel:
    """A model (`manifest_path`), after every check. ModelError: it was refused; the message names file and reason."""
    path = manifest_path(name_or_path)
    return parse(path, _read(path, MAX_MANIFEST_BYTES))


def load(name_or_path: str) -> Actor:
    """The actor of a model. Raises as `read`."""
    return read(name_or_path).actor


def info(name_or_path: str) -> ModelInfo:
    """What a model is and how it was made. Raises as `read`."""
    path, _, manifest, actor, _ = read(name_or_path)
    return ModelInfo(
        name=manifest.name,
        path=path,
        format_version=manifest.format_version,
        columns=tuple(manifest.features),
        hidden=actor.hidden,
        summary=actor.summary,
        sha256=manifest.weights.sha256,
        metrics=manifest.metrics,
        **manifest.training.model_dump(),
    )


def verify(name_or_path: str) -> tuple[Path, dict[str, str]]:
    """The manifest's path, and what `read` has found in order. Raises as `read`, on the first thing that is wrong."""
    path, _, manifest, actor, error = read(name_or_path)
    numbers = sum(weight.size for weight in actor.weights.values())
    return path, {
        "files": f"{path.name} and {manifest.weights.file}: regular files below the size limit",
        "format": f"version {manifest.format_version}",
        "features": ", ".join(manifest.features),
        "sha256": manifest.weights.sha256,
        "weights": f"{numbers} finite float32 numbers in the shapes of {actor.hidden} hidden units",
        "golden": f"{len(manifest.golden.scores)} scores within {error:.1e} (limit {GOLDEN_TOLERANCE:g})",
    }


def manifest_sha256(name_or_path: str) -> str:
    """Of the manifest's bytes: pins the whole model, because `read` holds the weights to the sha256 that is in it.
    ModelError: there is no such file, or it is none that would be read.
    """
    return hashlib.sha256(_read(manifest_path(name_or_path), MAX_MANIFEST_BYTES)).hexdigest()


def _read(path: Path, limit: int) -> bytes:
    """Content of a regular file of at most `limit` bytes. What was opened is what is checked: no race."""
    try:
        # Non-blocking: opening a named pipe must not wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ModelError(f"{path}: not a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise ModelError(f"{path}: a symbolic link; give the file itself") from error
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{path}: cannot be read: {reason}") from error
    if len(data) > limit:
        raise ModelError(f"{path}: larger than {limit} bytes")
    return data


# --- what is refused


def parse(path: Path, data: bytes, weights_data: bytes | None = None) -> VerifiedModel:
    """The model whose manifest, at `path`, is `data`. Without `weights_data` the file beside it is read. ModelError
    says what of the manifest or of the weights is refused.
    """
    manifest = _manifest(path, data)
    # The name of the weights was checked to be a plain one, so that they cannot be elsewhere.
    weights = _read(path.parent / manifest.weights.file, MAX_WEIGHTS_BYTES) if weights_data is None else weights_data
    beside = f"{path}: weights {manifest.weights.file}"
    digest = hashlib.sha256(weights).hexdigest()
    if digest != manifest.weights.sha256:
        raise ModelError(f"{beside}: sha256 is {digest}, the manifest says {manifest.weights.sha256}")
    try:
        tensors = safetensors.numpy.load(weights)
    except (SafetensorError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"{beside}: not a safetensors file: {error}") from error
    wanted = shapes(manifest.hidden) | ({RUN_TIME: (3,)} if RUN_TIME in tensors else {})
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise ModelError(f"{beside}: tensor {missing[0]} is missing")
    if extra := sorted(tensors.keys() - wanted.keys()):
        raise ModelError(f"{beside}: tensor {extra[0]} belongs to no actor")
    for name, shape in wanted.items():
        tensor = tensors[name]
        if tensor.dtype != np.float32 or tensor.shape != shape:
            raise ModelError(f"{beside}: tensor {name} is {tensor.dtype} {tensor.shape}, not float32 {shape}")
        if not np.isfinite(tensor).all():
            raise ModelError(f"{beside}: tensor {name} has values that are not finite")
    actor, golden = Actor(manifest.name, tensors), manifest.golden
    with np.errstate(all="ignore"):  # an overflow shows as a missed score
        scores = actor.score_rows(np.asarray(golden.terms, dtype=np.float32), np.asarray(golden.moment))
        miss = float(np.max(np.abs(scores - np.asarray(golden.scores))))
    if not miss <= GOLDEN_TOLERANCE:  # also when it is NaN
        raise ModelError(f"{path}: misses its golden scores by {miss:.3g}, more than {GOLDEN_TOLERANCE:g}")
    return VerifiedModel(path, (data, weights), manifest, actor, miss)


def _manifest(path: Path, data: bytes) -> Manifest:
    """The manifest in `data`, as far as it can be judged without the weights."""
    try:
        tree = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not a JSON manifest: {error}") from error
    version = tree.get("format_version") if isinstance(tree, dict) else None
    # Before the rest: a later format may differ in anything.
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise ModelError(f"{path}: format version {version}; this release reads version {FORMAT_VERSION}")
    try:
        manifest = Manifest.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise ModelError(f"{path}: {place}: {first['msg']}") from error
    name = manifest.name
    for found, known, what in ((manifest.features, STATE_COLUMNS, "features"), (manifest.moment, MOMENT, "moment")):
        if found != list(known):
            raise ModelError(f"{path}: made for the {what} {', '.join(found)}; this release has {', '.join(known)}")
    if not _NAME.fullmatch(name):
        raise ModelError(f"{path}: name {name!r} is not lower-case letters, digits, - and _")
    if manifest.weights.file != f"{name}.safetensors":
        raise ModelError(f"{path}: the weights must be {name}.safetensors beside it, not {manifest.weights.file!r}")
    golden = manifest.golden
    rows = {len(row) for row in golden.terms}
    if (rows, len(golden.moment), len(golden.scores)) != ({len(STATE_COLUMNS)}, len(MOMENT), len(golden.terms)):
        raise ModelError(f"{path}: {_GOLDEN}")
    return manifest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")


# --- writing


def save(
    actor: Actor,
    directory: Path,
    training: TrainingPart,
    metrics: Mapping[str, float],
    golden: tuple[npt.NDArray[np.float32], Floats],
) -> Path:
    """Write ``<actor.name>.json`` and ``.safetensors`` into `directory`, and give the manifest's path.

    The same values make the same bytes. What is written is checked as `read` would, before it replaces anything.
    `golden`: (k, 8) terms and the (14,) moment of jobs whose scores the manifest is to have. ModelError: a weight or a
    metric is not finite, the model would be refused, or it cannot be written.
    """
    path = directory / f"{actor.name}.json"
    for name, value in (*actor.weights.items(), *metrics.items()):
        if not np.isfinite(np.asarray(value)).all():
            raise ModelError(f"model '{actor.name}': {name} is not finite")
    weights = safetensors.numpy.save({each: np.ascontiguousarray(value) for each, value in actor.weights.items()})
    terms, moment = golden
    if terms.shape[1:] != (len(STATE_COLUMNS),) or moment.shape != (len(MOMENT),):
        raise ModelError(f"{path}: {_GOLDEN}")  # there are no scores of it to be written down
    manifest = Manifest(
        format="rltuned-model",
        format_version=FORMAT_VERSION,
        name=actor.name,
        features=list(STATE_COLUMNS),
        moment=list(MOMENT),
        hidden=actor.hidden,
        weights=WeightsPart(file=f"{actor.name}.safetensors", sha256=hashlib.sha256(weights).hexdigest()),
        training=training,
        metrics=dict(metrics),
        golden=GoldenPart(
            terms=terms.tolist(), moment=moment.tolist(), scores=actor.score_rows(terms, moment).tolist()
        ),
    )
    data = json_bytes(manifest.model_dump())
    parse(path, data, weights)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Weights first: until the manifest follows, a reader sees a sha256 that does not match, and refuses.
        write_atomic(directory / manifest.weights.file, weights, mode=MODEL_MODE)
        write_atomic(path, data, mode=MODEL_MODE)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def json_bytes(value: Any) -> bytes:
    """JSON for people, with a line for each value."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
