"""What a model file must be: manifest and weights as bytes in, a checked `Actor` out, and back. Opens no file."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from rltuned.cluster.tables import Floats
from rltuned.errors import ModelError
from rltuned.observe.observation import STATE_COLUMNS
from rltuned.policy.actor import AGEING, CORRECTED, EXTRAS, Activation, Actor, Architecture

FORMAT_VERSION: Final = 1
"""Raised when a reader of the old form would misread the new one."""

GOLDEN_TOLERANCE: Final = 1e-5
"""Largest difference between the scores that this machine computes and those that the trainer wrote down."""

MAX_MANIFEST_BYTES: Final = 256 * 1024
MAX_WEIGHTS_BYTES: Final = 4 * 1024 * 1024

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Model names: also the stem of both files."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class WeightsPart(_Part):
    """The file beside the manifest."""

    file: str
    sha256: str


class NormaliserPart(_Part):
    """The network sees (x − mean) / scale."""

    mean: list[float]
    scale: list[Annotated[float, Field(gt=0)]]


class ArchitecturePart(_Part):
    """`rltuned.policy.actor.Architecture`."""

    inputs: Annotated[int, Field(ge=1, le=256)]
    hidden: Annotated[list[Annotated[int, Field(ge=1, le=1024)]], Field(max_length=8)]
    activation: Literal["relu", "tanh"]
    context: bool
    residual: str | None
    bound: Annotated[float, Field(gt=0, le=1)]


class TrainingPart(_Part):
    """How it was made, so that it can be made again."""

    method: str
    """ "imitation", "ppo"."""
    data: str
    """What it was trained on, in words."""
    traces: dict[str, str]
    """sha256 of each trace by file name; empty where states were generated."""
    seed: int
    revision: str
    """Git revision of the code, "unknown" outside a checkout."""
    settings: dict[str, Any]


class GoldenPart(_Part):
    """Rows and the scores that they must get, on every machine."""

    state: Annotated[list[list[float]], Field(min_length=1, max_length=256)]
    base: list[float] | None
    """`rule_level` of the residual's rule for each row."""
    scores: list[float]


class Manifest(_Part):
    """The JSON file of a model."""

    format: Literal["rltuned-model"]
    format_version: int
    name: str
    features: list[str]
    """Columns of the input, in order: `STATE_COLUMNS`."""
    normalisers: NormaliserPart
    architecture: ArchitecturePart
    weights: WeightsPart
    training: TrainingPart
    metrics: dict[str, float]
    golden: GoldenPart


@dataclass(frozen=True)
class Parsed:
    """A model that was accepted."""

    actor: Actor
    manifest: Manifest
    golden_error: float
    """Largest difference to the golden scores."""


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in `data`, which was read from `where`.

    Raises:
        ModelError: not JSON, not of this form, or of a version, feature list or rule that this release does not know.
    """
    tree = _json(data, where)
    version = tree.get("format_version") if isinstance(tree, dict) else None
    # Before the rest: a later format may differ in anything.
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise ModelError(f"{where}: format version {version}; this release reads version {FORMAT_VERSION}")
    try:
        manifest = Manifest.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise ModelError(f"{where}: {place}: {first['msg']}") from error
    if manifest.features != list(STATE_COLUMNS):
        raise ModelError(
            f"{where}: made for the features {', '.join(manifest.features)}; this release observes "
            f"{', '.join(STATE_COLUMNS)}"
        )
    if not NAME.fullmatch(manifest.name):
        raise ModelError(f"{where}: name {manifest.name!r} is not lower-case letters, digits, - and _")
    if manifest.weights.file != f"{manifest.name}.safetensors":
        raise ModelError(
            f"{where}: the weights must be {manifest.name}.safetensors beside it, not {manifest.weights.file!r}"
        )
    rule = manifest.architecture.residual
    if rule is not None and rule not in CORRECTED:
        raise ModelError(f"{where}: corrects the rule '{rule}'; this release can correct {', '.join(CORRECTED)}")
    inputs = len(STATE_COLUMNS)
    lengths = {manifest.architecture.inputs, len(manifest.normalisers.mean), len(manifest.normalisers.scale)}
    if lengths | {len(row) for row in manifest.golden.state} != {inputs}:
        raise ModelError(f"{where}: inputs, normalisers and golden rows must all have {inputs} numbers")
    rows = len(manifest.golden.state)
    base = manifest.golden.base
    if (
        len(manifest.golden.scores) != rows
        or (base is None) != (rule is None)
        or len(base or manifest.golden.state) != rows
    ):
        raise ModelError(f"{where}: the golden vector needs one score for each row, and a base exactly for a residual")
    return manifest


def parse(manifest_data: bytes, weights_data: bytes, where: str) -> Parsed:
    """The model in the bytes of its two files; `where` names the manifest in errors.

    Raises:
        ModelError: anything about the manifest (`parse_manifest`), weights that are not the manifest's by sha256, not
            readable, not of the architecture's names, shapes and float32, not finite, or that miss the golden scores.
    """
    manifest = parse_manifest(manifest_data, where)
    beside = f"{where}: weights {manifest.weights.file}"
    digest = hashlib.sha256(weights_data).hexdigest()
    if digest != manifest.weights.sha256:
        raise ModelError(f"{beside}: sha256 is {digest}, the manifest says {manifest.weights.sha256}")
    try:
        tensors = safetensors.numpy.load(weights_data)
    except (SafetensorError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"{beside}: not a safetensors file: {error}") from error
    part = manifest.architecture
    architecture = Architecture(
        inputs=part.inputs,
        hidden=tuple(part.hidden),
        activation=Activation(part.activation),
        context=part.context,
        residual=part.residual,
        bound=part.bound,
    )
    shapes = _stored(architecture) | {name: shape for name, shape in EXTRAS.items() if name in tensors}
    if missing := sorted(shapes.keys() - tensors.keys()):
        raise ModelError(f"{beside}: tensor {missing[0]} is missing")
    if extra := sorted(tensors.keys() - shapes.keys()):
        raise ModelError(f"{beside}: tensor {extra[0]} does not belong to the architecture")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.dtype != np.float32 or tensor.shape != shape:
            raise ModelError(f"{beside}: tensor {name} is {tensor.dtype} {tensor.shape}, not float32 {shape}")
        if not np.isfinite(tensor).all():
            raise ModelError(f"{beside}: tensor {name} has values that are not finite")
    if (tensors.get(AGEING, np.zeros(1)) < 0.0).any():
        raise ModelError(f"{beside}: tensor {AGEING} is negative: jobs would fall back while they wait")
    with np.errstate(over="ignore"):  # too large for float32 is caught with the other non-finite values
        tensors["input.mean"] = np.asarray(manifest.normalisers.mean, dtype=np.float32)
        tensors["input.scale"] = np.asarray(manifest.normalisers.scale, dtype=np.float32)
    if not (np.isfinite(tensors["input.mean"]).all() and np.isfinite(tensors["input.scale"]).all()):
        raise ModelError(f"{where}: normalisers do not fit into float32")
    if not (tensors["input.scale"] > 0).all():
        raise ModelError(f"{where}: normalisers: a scale is 0 in float32")
    actor = Actor(manifest.name, architecture, tensors)
    return Parsed(actor, manifest, _golden_error(actor, manifest.golden, where))


def render(
    actor: Actor,
    training: TrainingPart,
    metrics: Mapping[str, float],
    golden_state: npt.NDArray[np.float32],
    golden_base: Floats | None = None,
) -> tuple[bytes, bytes]:
    """Manifest and weights of `actor`, the same bytes for the same values.

    `golden_state`: (k, inputs) rows; `golden_base`: (k,) `rule_level` for a residual actor. Their scores are taken from
    `actor`.

    Raises:
        ModelError: a weight or a metric is not finite.
    """
    for name, value in (*actor.weights.items(), *metrics.items()):
        if not np.isfinite(np.asarray(value)).all():
            raise ModelError(f"model '{actor.name}': {name} is not finite")
    stored = [*_stored(actor.architecture), *(name for name in EXTRAS if name in actor.weights)]
    weights = safetensors.numpy.save({name: np.ascontiguousarray(actor.weights[name]) for name in stored})
    architecture = actor.architecture
    manifest = Manifest(
        format="rltuned-model",
        format_version=FORMAT_VERSION,
        name=actor.name,
        features=list(STATE_COLUMNS),
        normalisers=NormaliserPart(
            mean=actor.weights["input.mean"].tolist(), scale=actor.weights["input.scale"].tolist()
        ),
        architecture=ArchitecturePart(
            inputs=architecture.inputs,
            hidden=list(architecture.hidden),
            activation=architecture.activation.value,
            context=architecture.context,
            residual=architecture.residual,
            bound=architecture.bound,
        ),
        weights=WeightsPart(file=f"{actor.name}.safetensors", sha256=hashlib.sha256(weights).hexdigest()),
        training=training,
        metrics=dict(metrics),
        golden=GoldenPart(
            state=golden_state.tolist(),
            base=None if golden_base is None else golden_base.tolist(),
            scores=actor.score_rows(golden_state, golden_base).tolist(),
        ),
    )
    return (json.dumps(manifest.model_dump(), indent=1, ensure_ascii=False) + "\n").encode(), weights


def _stored(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Tensors of the weights file; the normalisers are in the manifest, where people can read them."""
    return {name: shape for name, shape in architecture.shapes().items() if not name.startswith("input.")}


def _golden_error(actor: Actor, golden: GoldenPart, where: str) -> float:
    expected = np.asarray(golden.scores)
    base = None if golden.base is None else np.asarray(golden.base)
    with np.errstate(all="ignore"):  # an overflow shows as a missed score
        scores = actor.score_rows(np.asarray(golden.state, dtype=np.float32), base)
        error = float(np.max(np.abs(scores - expected)))
    if not error <= GOLDEN_TOLERANCE:  # also when it is NaN
        raise ModelError(f"{where}: misses its golden scores by {error:.3g}, more than {GOLDEN_TOLERANCE:g}")
    return error


def _json(data: bytes, where: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            raise ValueError("a key is given twice")
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number of JSON")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: not a JSON manifest: {error}") from error
