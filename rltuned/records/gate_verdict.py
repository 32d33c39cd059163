"""A gate's verdict as a value: `evaluate` writes it, the daemon reads it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from rltuned.core.config import MODEL
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import parse
from rltuned.records.in_force import VERDICT_FILE, store_of

FORMAT: Final = "rltuned-verdict"
VERSION: Final = 2
MAX_BYTES: Final = 4 * 1024 * 1024  # a verdict with its evidence takes about 20 kB

SLURM: Final = "slurm"
"""What a verdict can choose beside `MODEL` and the name of a plain rule: to leave the order to Slurm."""

DAY: Final = 86400.0
MOST_GPUS_APART: Final = 0.25
"""A cluster that has grown or shrunk by more than this share is not the one that was judged."""

_Chosen = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_Number = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class JudgedModel:
    """The model that was judged."""

    name: str
    manifest_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # it names the sha256 of the weights


@dataclass(frozen=True, slots=True)
class JudgedCluster:
    """The cluster that was judged."""

    gpus: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Judging:
    """How they were judged."""

    estimates: str
    """What the policies knew of run times, as `rltuned evaluate --estimates` takes it."""
    rollout: Literal[False] = False
    """An older gate may have judged a model with rollouts, which are no longer made."""


@dataclass(frozen=True, slots=True)
class JudgedNames:
    """What was found of run times that are predicted by what jobs are called."""

    on: bool  # they certainly help


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What the daemon has to know of a verdict. The evidence stays in the file, for people."""

    format: Literal["rltuned-verdict"]
    version: Literal[2]
    chosen: _Chosen
    share: _Share
    """`lend.share` that it was judged with; the default where `SLURM` is chosen: then nobody lends."""
    fallback: _Chosen
    """Of the same test, without the model: the plain rule that certainly beats Slurm's own order, else `SLURM`."""
    fallback_share: _Share
    reason: str
    model: JudgedModel
    cluster: JudgedCluster
    settings: Judging
    made_at: _Number  # epoch seconds
    valid_days: _Number
    names: JudgedNames | None = None  # None: nobody asked

    def __post_init__(self) -> None:
        if self.fallback == MODEL:  # it is what is left when the model cannot be used
            raise ValueError("its 'fallback' is the model")

    @property
    def expires(self) -> float:
        """Epoch seconds."""
        return self.made_at + self.valid_days * DAY

    def like(self, gpus: int) -> bool:
        """Whether a cluster of so many GPUs is like the one that was judged."""
        return abs(gpus - self.cluster.gpus) <= MOST_GPUS_APART * self.cluster.gpus


def verdict_file(model: str, directory: Path) -> Path:
    """The verdict that a daemon with this `policy.model` goes by: beside it in its store, else in `directory`."""
    return (directory if store_of(model) is None else Path(model).parent) / VERDICT_FILE


def parse_verdict(data: bytes) -> GateVerdict:
    """A verdict from the bytes of its file. RltunedError: it is none, or says something that cannot be; names what."""
    if len(data) > MAX_BYTES:
        raise RltunedError(f"larger than {MAX_BYTES} bytes")
    try:
        return parse(GateVerdict, data, "a verdict")
    except RltunedError as error:
        raise RltunedError(f"{error}; run `rltuned gate` again") from error
