"""`ClusterShape`: the hardware and partitions of a cluster without any jobs, and `read_shape`, what `--cluster` takes.

Short form, one pool of equal nodes after the other, separated by commas::

    20x8:p100                    20 nodes with 8 GPUs of type p100
    240x1                        240 nodes with one GPU of no particular type
    16x2:p100,20x8:p100          two pools
    20x8:p100:64c:512g:2000d     64 CPUs, 512 GiB of memory and 2,000 GiB of local disk on each node
    4x0:32c                      4 nodes without GPUs

that is, ``NODES x GPUS [:TYPE] [:CPUSc] [:MEMORYg] [:DISKd]``. It makes one partition, "main". `from_json` takes the
long form of a file, with partitions. What is not given: 8 CPUs and 64 GiB for each GPU (and for a node without
GPUs), no local disk, no limits. GPU types are compared in lower case.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rltuned.core.changes import OverSubscribe
from rltuned.core.errors import ShapeError
from rltuned.core.notation import seconds_of, tres_name
from rltuned.core.plain_tables import node_table
from rltuned.core.tables import NO_ROWS, Floats, NodeTable, Partition

CPUS_PER_GPU: Final = 8
MEM_PER_GPU: Final = 64 * 1024.0
"""Of a node that a shape says nothing of: MiB, and CPUs, for each of its GPUs, at least once."""
MAX_NODES: Final = 100_000
MAX_GPUS_PER_NODE: Final = 1024
MAX_BYTES: Final = 16 * 2**20  # no description of a cluster is larger; a trace given by mistake is
MAIN: Final = "main"
_TYPE: Final = "[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}"


@dataclass(frozen=True)
class ClusterShape:
    """A cluster with nothing running."""

    nodes: NodeTable
    partitions: tuple[Partition, ...]  # at least one; exactly one has `default` set
    text: str  # as it was written: "20x8:p100", or the file's name
    qos: tuple[str, ...] = field(default=("normal",))
    longest: Floats | None = None
    """(M,) seconds: no job with a longer time limit starts on the node (Flags=TIME_FLOAT); None: any does."""

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return int(self.nodes.gpus.sum())

    def partition(self, name: str) -> Partition | None:
        """The partition of that name; "" means the default one."""
        return next((part for part in self.partitions if part.name == name), None) if name else self.default

    @property
    def default(self) -> Partition:
        """Where jobs go that name none."""
        return next(partition for partition in self.partitions if partition.default)


class _Form(BaseModel):
    """A key that means nothing is an error: what it was to say would be assumed in silence."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_Amount = Annotated[float, Field(gt=0, lt=2**40)]


class Pool(_Form):
    """Equal nodes. The amounts are those of each node; None: the default."""

    name: str | None = None
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    gpus_per_node: Annotated[int, Field(ge=0, le=MAX_GPUS_PER_NODE)]
    gpu_type: Annotated[str, Field(pattern=rf"^({_TYPE})?$")] = ""
    cpus: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    mem_mib: _Amount | None = None
    mem_gib: _Amount | None = None
    disk_mib: _Amount | None = None
    disk_gib: _Amount | None = None
    features: list[str] = []
    weight: Annotated[int, Field(ge=0, lt=2**32)] = 1  # slurm.conf(5): Slurm takes nodes of a smaller one first

    @property
    def kind(self) -> str:
        """Type of the GPUs; "gpu": none in particular."""
        return tres_name(self.gpu_type or "gpu")


def shape(
    pools: Sequence[Pool],
    text: str,
    partitions: Sequence[tuple[Partition, Sequence[int]]] = (),
    qos: Sequence[str] = ("normal",),
) -> ClusterShape:
    """A cluster of pools, whose nodes are named node1 …, zero-padded, in this order. Raises ShapeError: too many nodes.

    `partitions`: each with the indices of its pools (`Partition.nodes` is filled in). None: one of all nodes.
    """
    total = sum(pool.nodes for pool in pools)
    if total > MAX_NODES:
        raise ShapeError(f"cluster {_shown(text)}: has {total:,} nodes; 1 to {MAX_NODES:,} nodes are possible")
    types = tuple(dict.fromkeys(pool.kind for pool in pools if pool.gpus_per_node))
    gpus = np.zeros((total, len(types)), dtype=np.int32)
    first = np.cumsum([0, *(pool.nodes for pool in pools)])
    for pool, begin in zip(pools, first.tolist(), strict=False):
        if pool.gpus_per_node:
            gpus[begin : begin + pool.nodes, types.index(pool.kind)] = pool.gpus_per_node

    def column(value: Callable[[Pool], float]) -> Any:
        return np.repeat([value(pool) for pool in pools], [pool.nodes for pool in pools])

    width = len(str(total))
    nodes = node_table(
        [f"node{number:0{width}d}" for number in range(1, total + 1)],
        types,
        gpus,
        cpus=column(lambda pool: pool.cpus or CPUS_PER_GPU * max(pool.gpus_per_node, 1)),
        mem=column(
            lambda pool: pool.mem_mib or (pool.mem_gib or 0.0) * 1024 or MEM_PER_GPU * max(pool.gpus_per_node, 1)
        ),
        tmp=column(lambda pool: pool.disk_mib or (pool.disk_gib or 0.0) * 1024),
        features=[frozenset(pool.features) for pool in pools for _ in range(pool.nodes)],
        weight=column(lambda pool: pool.weight),
    )
    filled = tuple(
        replace(
            partition,
            nodes=np.concatenate([np.arange(first[pool], first[pool + 1]) for pool in sorted(rows)]).astype(np.int32),
        )
        for partition, rows in partitions or ((Partition(MAIN, NO_ROWS, default=True), range(len(pools))),)
    )
    return ClusterShape(nodes, filled, text, tuple(qos))


def read_shape(text_or_path: str | Path) -> ClusterShape:
    """The cluster that `--cluster` describes: the short form, or a file: what ends in .json or names an existing one.
    Raises ShapeError: names the file and line, or the place, and the reason.
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


# --- the short form ----------------------------------------------------------------------------------------------

_POOL = re.compile(r"([0-9]{1,9})x([0-9]{1,9})((?::[^:]*)*)\Z", re.ASCII)
_RESOURCE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([cgd])\Z", re.ASCII)
_RESOURCE_NAME: Final = {"c": "CPUs", "g": "memory", "d": "disk"}


def parse_shape(text: str) -> ClusterShape:
    """The cluster that the short form (top of this page) describes. Raises ShapeError: names the pool and what is wrong
    with it.
    """
    return shape([_pool(part.strip(), text) for part in text.split(",")], text)


def _pool(part: str, text: str) -> Pool:
    where = f"cluster {_shown(text)}, pool {_shown(part)}" if part != text else f"cluster {_shown(text)}"
    match = _POOL.match(part)
    if match is None:
        raise ShapeError(f"{where}: expected NODESxGPUS[:TYPE][:CPUSc][:MEMORYg][:DISKd], such as 20x8:p100:64c:512g")
    found: dict[str, float] = {}
    gpu_type = ""
    for position, word in enumerate(match.group(3).split(":")[1:]):
        resource = _RESOURCE.match(word)
        if resource is not None:
            number, unit = float(resource.group(1)), resource.group(2)
            if unit in found:
                raise ShapeError(f"{where}: {_RESOURCE_NAME[unit]} are given twice")
            if unit == "c" and (not number.is_integer() or number < 1):
                raise ShapeError(f"{where}: {word}: CPUs are a whole number above 0")
            if unit == "g" and not number:
                raise ShapeError(f"{where}: {word}: memory is above 0")
            found[unit] = number
        elif position == 0 and re.fullmatch(_TYPE, word):
            gpu_type = word
        else:
            raise ShapeError(f"{where}: cannot understand {_shown(word)}: first the GPU type, then 64c, 512g, 2000d")
    nodes, gpus = int(match.group(1)), int(match.group(2))
    if not 1 <= nodes <= MAX_NODES:
        raise ShapeError(f"{where}: {nodes} nodes; a pool has 1 to {MAX_NODES:,}")
    if gpus > MAX_GPUS_PER_NODE:
        raise ShapeError(f"{where}: {gpus} GPUs on a node; it can have 0 to {MAX_GPUS_PER_NODE:,}")
    cpus = int(found["c"]) if "c" in found else None
    return Pool(
        nodes=nodes,
        gpus_per_node=gpus,
        gpu_type=gpu_type,
        cpus=cpus,
        mem_gib=found.get("g"),
        disk_gib=found.get("d") or None,
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


# --- JSON --------------------------------------------------------------------------------------------------------


def _seconds(limit: object) -> object:
    seconds = seconds_of(limit) if isinstance(limit, str) else limit
    if isinstance(seconds, float) and math.isnan(seconds):
        raise ValueError("expected seconds or a time such as 1-12:00:00")
    return seconds


class _Partition(_Form):
    name: Annotated[str, Field(min_length=1)]
    pools: Annotated[list[str], Field(min_length=1)] | None = None
    tier: Annotated[int, Field(ge=0, le=65533)] = 1
    oversubscribe: Annotated[str, Field(pattern=r"^(NO|EXCLUSIVE|(YES|FORCE)(:[1-9][0-9]{0,4})?)$")] = "NO"
    default: bool = False
    max_time: Annotated[float, Field(gt=0, allow_inf_nan=True), BeforeValidator(_seconds)] = math.inf
    max_nodes: Annotated[int, Field(ge=1)] | None = None
    billing: Annotated[dict[str, float], Field(min_length=1)] | None = None

    def partition(self, *, default: bool) -> Partition:
        how, _, count = self.oversubscribe.partition(":")
        return Partition(
            self.name,
            NO_ROWS,
            priority_tier=self.tier,
            oversubscribe=OverSubscribe[how],
            # slurm.conf(5): YES and FORCE without a number mean four jobs.
            oversubscribe_count=int(count) if count else 4 if how in {"YES", "FORCE"} else 1,
            max_time=self.max_time,
            max_nodes=self.max_nodes or math.inf,
            default=default,
            billing=self.billing and {tres_name(name): weight for name, weight in self.billing.items()},
        )


class _Cluster(_Form):
    pools: Annotated[list[Pool], Field(min_length=1)]
    partitions: Annotated[list[_Partition], Field(min_length=1)] = [_Partition(name=MAIN)]
    qos: Annotated[list[str], Field(min_length=1)] = ["normal"]


def from_json(value: Any, text: str) -> ClusterShape:
    """A cluster from a JSON value::

        {"pools": [{"name": "new", "nodes": 4, "gpus_per_node": 8, "gpu_type": "a100", "cpus": 128, "mem_gib": 1024,
                    "disk_gib": 3500, "features": ["nvme"], "weight": 10},
                   {"name": "old", "nodes": 16, "gpus_per_node": 2, "gpu_type": "p100"}],
         "partitions": [{"name": "prod", "pools": ["new"], "tier": 2, "max_time": "2-00:00:00", "default": true},
                        {"name": "all", "max_nodes": 8, "oversubscribe": "YES:2", "billing": {"cpu": 1}}],
         "qos": ["normal"]}

    A partition has the pools that it names, or all. Without `partitions` there is one, "main". The first is the default
    one unless another says so. `max_time` is in seconds or as in slurm.conf(5); memory and disk are also in MiB
    (`mem_mib`, `disk_mib`).

    `value`: as `json.loads` gives it. `text`: what the shape calls itself: the file. Raises ShapeError: names the place
    and the reason.
    """
    try:
        found = _Cluster.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = " ".join(str(part + 1) if isinstance(part, int) else str(part) for part in first["loc"])
        given = "" if first["type"] in {"missing", "extra_forbidden"} else f", not {_shown(first['input'])}"
        raise ShapeError(f"{text}: {place + ': ' if place else ''}{first['msg']}{given}") from error
    named = {pool.name: row for row, pool in enumerate(found.pools) if pool.name is not None}
    _once([pool.name for pool in found.pools if pool.name is not None], f"{text}: pools")
    _once([part.name for part in found.partitions], f"{text}: partitions")
    chosen = [part.name for part in found.partitions if part.default] or [found.partitions[0].name]
    if len(chosen) > 1:
        raise ShapeError(f"{text}: two partitions are the default one: {chosen[0]}, {chosen[1]}")
    parts = []
    for part in found.partitions:
        where = f"{text}: partition {part.name}"
        _once(part.pools or (), where)
        for name in part.pools or ():
            if name not in named:
                raise ShapeError(f"{where}: no pool is named {_shown(name)}; there is {', '.join(named) or 'none'}")
        rows = range(len(found.pools)) if part.pools is None else [named[name] for name in part.pools]
        parts.append((part.partition(default=part.name in chosen), rows))
    return shape(found.pools, text, parts, found.qos)


def _once(names: Sequence[str], where: str) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ShapeError(f"{where}: {_shown(twice)} is there twice")
