"""A gate's verdict as a value: `evaluate` writes it, the daemon reads it."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rltuned.core.errors import RltunedError

FORMAT: Final = "rltuned-verdict"
VERSION: Final = 2
MAX_BYTES: Final = 4 * 1024 * 1024
"""A verdict with its evidence takes about 20 kB."""

MODEL: Final = "model"
SLURM: Final = "slurm"
"""What a verdict can choose beside the name of a plain rule: the model, and to leave the order to Slurm."""

DAY: Final = 86400.0
MOST_GPUS_APART: Final = 0.25
"""A cluster that has grown or shrunk by more than this share is not the one that was judged."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What the daemon has to know of a verdict. The evidence stays in the file, for people."""

    chosen: str
    share: float
    """`lend.share` that it was judged with; the default where `SLURM` is chosen: then nobody lends."""
    fallback: str
    """Of the same test, without the model: the plain rule that certainly beats Slurm's own order, else `SLURM`."""
    fallback_share: float
    reason: str
    model: str
    model_sha256: str
    """Of its manifest, which names the sha256 of its weights."""
    gpus: int
    """Of the cluster that was judged."""
    estimates: str
    """What the policies knew of run times, as `rltuned evaluate --estimates` takes it."""
    made_at: float
    """Epoch seconds."""
    valid_days: float

    @property
    def expires(self) -> float:
        """Epoch seconds."""
        return self.made_at + self.valid_days * DAY

    def like(self, gpus: int) -> bool:
        """Whether a cluster of so many GPUs is like the one that was judged."""
        return abs(gpus - self.gpus) <= MOST_GPUS_APART * self.gpus


def parse_verdict(data: bytes) -> GateVerdict:
    """A verdict from the bytes of its file.

    Raises:
        RltunedError: it is none, or of another version, or says something that cannot be; names what.
    """
    if len(data) > MAX_BYTES:
        raise RltunedError(f"larger than {MAX_BYTES} bytes")
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RltunedError(f"no JSON: {error}") from error
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise RltunedError("not a verdict of `rltuned gate`")
    if tree.get("version") != VERSION:
        raise RltunedError(
            f"a verdict of version {tree.get('version')!r}, and this rltuned reads {VERSION}: run `rltuned gate` again"
        )
    model, cluster, settings = (_part(tree, name) for name in ("model", "cluster", "settings"))
    verdict = GateVerdict(
        chosen=_text(tree, "chosen", _NAME),
        share=_number(tree, "share", 1.0),
        fallback=_text(tree, "fallback", _NAME),
        fallback_share=_number(tree, "fallback_share", 1.0),
        reason=_text(tree, "reason"),
        model=_text(model, "name"),
        model_sha256=_text(model, "manifest_sha256", _SHA256),
        gpus=int(_number(cluster, "gpus")),
        estimates=_text(settings, "estimates"),
        made_at=_number(tree, "made_at"),
        valid_days=_number(tree, "valid_days"),
    )
    if settings.get("rollout") is True:
        raise RltunedError("it is about a model with rollouts, which are no longer made: run `rltuned gate` again")
    if verdict.fallback == MODEL:  # it is what is left when the model cannot be used
        raise RltunedError("its 'fallback' is the model")
    return verdict


def _part(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = tree.get(name)
    if not isinstance(value, dict):
        raise RltunedError(f"it has no '{name}'")
    return value


def _text(tree: Mapping[str, Any], name: str, pattern: re.Pattern[str] | None = None) -> str:
    value = tree.get(name)
    if not isinstance(value, str) or (pattern is not None and not pattern.match(value)):
        raise RltunedError(f"its '{name}' is {str(value)[:80]!r}")
    return value


def _number(tree: Mapping[str, Any], name: str, most: float = sys.float_info.max) -> float:
    value = tree.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= most:
        raise RltunedError(f"its '{name}' is {str(value)[:80]!r}")
    return float(value)
