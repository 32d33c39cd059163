"""`ClusterShape`: the hardware and partitions of a cluster without any jobs, and the short ways to write one down.

Short form, one pool of equal nodes after the other, separated by commas::

    20x8:p100                    20 nodes with 8 GPUs of type p100
    240x1                        240 nodes with one GPU of no particular type
    16x2:p100,20x8:p100          two pools
    20x8:p100:64c:512g:2000d     64 CPUs, 512 GiB of memory and 2,000 GiB of local disk on each node
    4x0:32c                      4 nodes without GPUs

that is, ``NODES x GPUS [:TYPE] [:CPUSc] [:MEMORYg] [:DISKd]``. It makes one partition, "main". `from_json` takes the
long form, with partitions (virtual clusters). What is not given: 8 CPUs and 64 GiB for each GPU (and for a node without
GPUs), no local disk, no limits. GPU types are compared in lower case.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.durations import duration
from rltuned.cluster.plain_tables import node_table
from rltuned.cluster.scheduler import tres_name
from rltuned.cluster.tables import NO_ROWS, NodeTable, Partition
from rltuned.errors import ShapeError

CPUS_PER_GPU: Final = 8
MEM_PER_GPU: Final = 64 * 1024.0
"""Of a node that a shape says nothing of: MiB, and CPUs, for each of its GPUs, at least once."""
MAX_NODES: Final = 100_000
MAX_GPUS_PER_NODE: Final = 1024
MAIN: Final = "main"


@dataclass(frozen=True)
class ClusterShape:
    """A cluster with nothing running."""

    nodes: NodeTable
    partitions: tuple[Partition, ...]
    """At least one; exactly one has `default` set."""
    text: str
    """As it was written: "20x8:p100", or the file's name."""
    qos: tuple[str, ...] = field(default=("normal",))

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


@dataclass(frozen=True)
class Pool:
    """Equal nodes."""

    nodes: int
    gpus: int
    """Of each node; so are the others."""
    gpu_type: str = ""
    cpus: int = 0
    """0: the default; likewise `mem`."""
    mem: float = 0.0
    """MiB; so is the local disk `tmp`."""
    tmp: float = 0.0
    features: frozenset[str] = frozenset()
    weight: int = 1
    """slurm.conf(5) Weight: Slurm takes nodes of a smaller one first."""


def shape(
    pools: Sequence[Pool],
    text: str,
    partitions: Sequence[tuple[Partition, Sequence[int]]] = (),
    qos: Sequence[str] = ("normal",),
) -> ClusterShape:
    """A cluster of pools, whose nodes are named node1 …, zero-padded, in this order.

    `partitions`: each with the indices of its pools (`Partition.nodes` is filled in). None: one of all nodes.

    Raises:
        ShapeError: no or too many nodes.
    """
    total = sum(pool.nodes for pool in pools)
    if not 1 <= total <= MAX_NODES:
        raise ShapeError(f"cluster {_shown(text)}: has {total:,} nodes; 1 to {MAX_NODES:,} nodes are possible")
    types = tuple(dict.fromkeys(pool.gpu_type or "gpu" for pool in pools if pool.gpus))
    counts = np.asarray([pool.nodes for pool in pools])
    first = np.concatenate(([0], np.cumsum(counts)))
    gpus = np.zeros((len(pools), len(types)), dtype=np.int32)
    for row, pool in enumerate(pools):
        if pool.gpus:
            gpus[row, types.index(pool.gpu_type or "gpu")] = pool.gpus

    def column(values: Iterable[float]) -> Any:
        return np.repeat(np.asarray(list(values)), counts)

    width = len(str(total))
    nodes = node_table(
        [f"node{number:0{width}d}" for number in range(1, total + 1)],
        types,
        np.repeat(gpus, counts, axis=0),
        cpus=column(pool.cpus or CPUS_PER_GPU * max(pool.gpus, 1) for pool in pools),
        mem=column(pool.mem or MEM_PER_GPU * max(pool.gpus, 1) for pool in pools),
        tmp=column(pool.tmp for pool in pools),
        features=[pool.features for pool in pools for _ in range(pool.nodes)],
        weight=column(pool.weight for pool in pools),
    )
    if not partitions:
        partitions = ((Partition(MAIN, NO_ROWS, default=True), range(len(pools))),)
    filled = tuple(
        replace(
            partition,
            nodes=np.concatenate([np.arange(first[pool], first[pool + 1]) for pool in sorted(rows)]).astype(np.int32),
        )
        for partition, rows in partitions
    )
    return ClusterShape(nodes, filled, text, tuple(qos))


# --- the short form ----------------------------------------------------------------------------------------------

_POOL = re.compile(r"([0-9]{1,9})x([0-9]{1,9})((?::[^:]*)*)\Z", re.ASCII)
_RESOURCE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([cgd])\Z", re.ASCII)
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}\Z", re.ASCII)
_RESOURCE_NAME: Final = {"c": "CPUs", "g": "memory", "d": "disk"}


def parse_shape(text: str) -> ClusterShape:
    """The cluster that the short form (top of this page) describes.

    Raises:
        ShapeError: names the pool and what is wrong with it.
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
        elif position == 0 and _TYPE.match(word):
            gpu_type = tres_name(word)
        else:
            raise ShapeError(f"{where}: cannot understand {_shown(word)}: first the GPU type, then 64c, 512g, 2000d")
    return _checked(
        where,
        Pool(
            nodes=int(match.group(1)),
            gpus=int(match.group(2)),
            gpu_type=gpu_type,
            cpus=int(found.get("c", 0)),
            mem=found.get("g", 0.0) * 1024,
            tmp=found.get("d", 0.0) * 1024,
        ),
    )


def _checked(where: str, pool: Pool) -> Pool:
    if not 1 <= pool.nodes <= MAX_NODES:
        raise ShapeError(f"{where}: {pool.nodes} nodes; a pool has 1 to {MAX_NODES:,}")
    if not 0 <= pool.gpus <= MAX_GPUS_PER_NODE:
        raise ShapeError(f"{where}: {pool.gpus} GPUs on a node; it can have 0 to {MAX_GPUS_PER_NODE:,}")
    return pool if pool.gpus else replace(pool, gpu_type="")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


# --- JSON --------------------------------------------------------------------------------------------------------

_AMOUNTS: Final = {
    "cpus": {"cpus": 1, "cpus_per_node": 1},
    "memory": {
        **dict.fromkeys(("mem_mib", "mem_mib_per_node", "mem"), 1),
        **dict.fromkeys(("mem_gb", "mem_gib", "mem_gb_per_node", "mem_gib_per_node"), 1024),
    },
    "disk": {
        **dict.fromkeys(("disk_mib", "disk_mib_per_node", "disk"), 1),
        **dict.fromkeys(("disk_gb", "disk_gib", "disk_gb_per_node", "disk_gib_per_node"), 1024),
    },
}
"""What a pool's nodes have, by key, and how many CPUs or MiB one of it is."""
_INHERITED: Final = {"gpus_per_node", "gpu_type", "features"} | {key for keys in _AMOUNTS.values() for key in keys}
USUAL_GPUS_PER_NODE: Final = 8
"""GPUs of a virtual cluster's nodes where neither it nor what encloses it says."""


def from_json(value: Any, text: str, inherited: Mapping[str, Any] = MappingProxyType({})) -> ClusterShape:
    """A cluster from a JSON value::

        {"pools": [{"name": "new", "nodes": 4, "gpus_per_node": 8, "gpu_type": "a100", "cpus": 128, "mem_gib": 1024,
                    "disk_gib": 3500, "features": ["nvme"], "weight": 10},
                   {"name": "old", "nodes": 16, "gpus_per_node": 2, "gpu_type": "p100"}],
         "partitions": [{"name": "prod", "pools": ["new"], "tier": 2, "max_time": "2-00:00:00", "default": true},
                        {"name": "all", "max_nodes": 8, "billing": {"cpu": 1, "gres/gpu": 16}},
                        {"name": "lab", "nodes": 2, "gpus_per_node": 8, "gpu_type": "v100"}],
         "qos": ["normal"]}

    A partition has the pools that it names, or nodes of its own, or all pools. Without `partitions` there is one,
    "main". The first is the default one unless another says so. `max_time` is in seconds or as in slurm.conf(5).

    Virtual clusters may be written short, with GPUs per node (8 where nobody says), type and the like beside them:
    ``{"gpus_per_node": 8, "vc_nodes": {"vcA": 9, "vcB": 5}}``, ``"vc_nodes": [6, 4]``, or
    ``"vcs": [{"vc": 1, "nodes": 16}]``. Keys that mean nothing here (sources, notes) are skipped; what a key that
    means something says wrongly is an error.

    Args:
        value: as `json.loads` gives it; also a list of pools, or an object that maps names to numbers of nodes.
        text: what the shape calls itself: the file, or the whole reference.
        inherited: what the objects around it say.

    Raises:
        ShapeError: names the place and the reason.
    """
    if isinstance(value, list):
        value = {"pools": value}
    _expect(isinstance(value, Mapping), text, "expected an object with pools or partitions", value)
    if value and all(type(count) is int for count in value.values()) and not {"nodes", "gpus_per_node"} & set(value):
        value = {"vc_nodes": value}
    reader = _JsonShape({**inherited, **_inherits(value)}, text)
    if "pools" in value:
        reader.pools(value["pools"])
    elif not {"partitions", "vcs", "vc_nodes"} & set(value):
        if "nodes" not in value:
            raise ShapeError(
                f"{text}: no pools, partitions, vcs, vc_nodes or nodes in it; "
                f"it has {', '.join(map(str, value)) or 'nothing'}"
            )
        reader.pools([value])
    for key in ("partitions", "vcs"):
        if key in value:
            reader.partitions(value[key], key)
    if "vc_nodes" in value:
        reader.vc_nodes(value["vc_nodes"])
    return reader.finish(value.get("qos", ["normal"]))


def at(root: Any, pointer: str, text: str) -> ClusterShape:
    """The cluster at the dotted path `pointer` of a JSON value, as in ``clusters.json#philly.training_slice``.

    GPUs per node, type and the like are looked up in what encloses it as well, so that
    ``#helios.venus.vc_nodes_2020_09_28`` has the GPUs of ``helios.venus``.

    Raises:
        ShapeError: no such path (names what there is), or what is there is no cluster.
    """
    value, inherited, place = root, dict[str, Any](), ""
    for key in pointer.split("."):
        if isinstance(value, Mapping):
            inherited = {**inherited, **_inherits(value)}
        if not isinstance(value, Mapping) or key not in value:
            here = value if isinstance(value, Mapping) else {}
            known = ", ".join(name for name, below in here.items() if isinstance(below, Mapping | list))
            raise ShapeError(f"{text}: no {key!r} in {place or 'the file'}" + (f"; there is {known}" if known else ""))
        value, place = value[key], f"{place}.{key}".lstrip(".")
    return from_json(value, text, inherited)


def _inherits(value: Mapping[str, Any]) -> dict[str, Any]:
    """What an object says for everything inside it."""
    return {key: below for key, below in value.items() if key in _INHERITED and below is not None}


class _JsonShape:
    """Pools and partitions as they are found."""

    def __init__(self, inherited: Mapping[str, Any], text: str) -> None:
        self.inherited = inherited
        self.text = text
        self.found: list[Pool] = []
        self.named: dict[str, int] = {}
        self.shared = 0
        """Pools that belong to no partition in particular: the first ones."""
        self.parts: list[tuple[Partition, list[int] | None]] = []

    def pools(self, value: Any) -> None:
        for number, item in enumerate(_list(value, f"{self.text}: pools"), start=1):
            where = f"{self.text}: pool {number}"
            row, name = self._pool(_object(item, where), where), item.get("name")
            if name is not None:
                if not isinstance(name, str) or name in self.named:
                    raise ShapeError(
                        f"{where}: name {_shown(name)} is not a text or there is another pool of that name"
                    )
                self.named[name] = row
        self.shared = len(self.found)

    def partitions(self, value: Any, key: str) -> None:
        for number, item in enumerate(_list(value, f"{self.text}: {key}"), start=1):
            where = f"{self.text}: {key}, entry {number}"
            entry = _object(item, where)
            name = entry.get("name", entry.get("vc"))
            if type(name) not in {str, int} or not str(name):
                raise ShapeError(f"{where}: a partition needs a name")
            self._partition(str(name), entry, f"{self.text}: partition {name}")

    def vc_nodes(self, value: Any) -> None:
        if isinstance(value, list):
            value = {f"vc{number}": nodes for number, nodes in enumerate(value, start=1)}
        for name, nodes in _object(value, f"{self.text}: vc_nodes").items():
            self._partition(name, {"nodes": nodes}, f"{self.text}: vc_nodes, {name}")

    def _partition(self, name: str, entry: Mapping[str, Any], where: str) -> None:
        partition, rows = _settings(name, entry, where), self._rows(entry, where)
        if any(name == other.name for other, _ in self.parts):
            raise ShapeError(f"{where}: there are two partitions of that name")
        self.parts.append((partition, rows))

    def _rows(self, entry: Mapping[str, Any], where: str) -> list[int] | None:
        """Pools of a partition; None: all shared ones."""
        if "pools" not in entry:
            return [self._pool(entry, where)] if "nodes" in entry else None
        rows = []
        for item in _list(entry["pools"], f"{where}: pools"):
            if isinstance(item, Mapping):
                rows.append(self._pool(item, where))
            elif isinstance(item, str) and item in self.named:
                rows.append(self.named[item])
            else:
                raise ShapeError(
                    f"{where}: no pool is named {_shown(item)}; there is {', '.join(self.named) or 'none'}"
                )
        if len(set(rows)) < len(rows):
            raise ShapeError(f"{where}: a pool is named twice")
        return rows

    def _pool(self, item: Mapping[str, Any], where: str) -> int:
        """The row of a pool that is new."""
        item = {**self.inherited, **{key: below for key, below in item.items() if below is not None}}
        named = next((item[key] for key in ("gpu_type", "type") if item.get(key) is not None), "")
        # What follows a blank is a remark: "P100 (Table 4)".
        gpu_type = "".join(named.split()[:1]) if isinstance(named, str) else None
        if gpu_type is None or (gpu_type and not _TYPE.match(gpu_type)):
            raise ShapeError(f"{where}: {_shown(named)} is not the name of a GPU type")
        features = item.get("features", [])
        _expect(_are_names(features), where, "features are a list of names", features)
        weight = item.get("weight", 1)
        _expect(type(weight) is int and 0 <= weight < 2**32, where, "weight: expected a whole number", weight)
        amount = {kind: _amount(item, keys, where) for kind, keys in _AMOUNTS.items()}
        if not amount["cpus"].is_integer():
            raise ShapeError(f"{where}: cpus: expected a whole number, not {amount['cpus']}")
        nodes: Any = item.get("nodes")
        gpus: Any = item.get("gpus_per_node", USUAL_GPUS_PER_NODE)
        for key, number in (("nodes", nodes), ("gpus_per_node", gpus)):
            _expect(type(number) is int, where, f"{key}: expected a whole number", number)
        pool = Pool(
            nodes=nodes,
            gpus=gpus,
            gpu_type="" if gpu_type == "gpu" else tres_name(gpu_type),
            cpus=int(amount["cpus"]),
            mem=amount["memory"],
            tmp=amount["disk"],
            features=frozenset(features),
            weight=weight,
        )
        self.found.append(_checked(where, pool))
        return len(self.found) - 1

    def finish(self, qos: Any) -> ClusterShape:
        _expect(bool(qos) and _are_names(qos), self.text, "qos is a list of names", qos)
        chosen = [partition for partition, _ in self.parts if partition.default]
        if len(chosen) > 1:
            raise ShapeError(f"{self.text}: two partitions are the default one: {chosen[0].name}, {chosen[1].name}")
        parts = []
        for number, (partition, own) in enumerate(self.parts):
            rows = own if own is not None else list(range(self.shared))
            if not rows:
                raise ShapeError(f"{self.text}: partition {partition.name} has no nodes")
            parts.append((replace(partition, default=partition.default or (not chosen and number == 0)), rows))
        return shape(self.found, self.text, parts, qos)


_MODES: Final = ("NO", "YES", "FORCE", "EXCLUSIVE")


def _settings(name: str, entry: Mapping[str, Any], where: str) -> Partition:
    default, tier = entry.get("default", False), entry.get("tier", entry.get("priority_tier", 1))
    limit, most, billing = entry.get("max_time"), entry.get("max_nodes"), entry.get("billing")
    seconds = math.inf if limit is None else duration(limit) if isinstance(limit, str) else limit
    _expect(isinstance(default, bool), where, "default: expected true or false", default)
    _expect(type(tier) is int and 0 <= tier <= 65533, where, "tier: expected a number from 0 to 65533", tier)
    timed = type(seconds) in {int, float} and seconds > 0
    _expect(timed, where, "max_time: expected seconds or a time such as 1-12:00:00", limit)
    _expect(most is None or (type(most) is int and most >= 1), where, "max_nodes: expected a number above 0", most)
    numbers = isinstance(billing, Mapping) and billing and all(type(one) in {int, float} for one in billing.values())
    _expect(billing is None or bool(numbers), where, "billing: expected weights by TRES", billing)
    how, _, count = str(entry.get("oversubscribe", "NO")).upper().partition(":")
    if how not in _MODES or (count and not (count.isdecimal() and 1 <= int(count[:6]) <= 65533)):
        raise ShapeError(f"{where}: oversubscribe: {_shown(entry['oversubscribe'])} is none of {', '.join(_MODES)}")
    return Partition(
        name,
        NO_ROWS,
        priority_tier=tier,
        oversubscribe=OverSubscribe[how],
        # slurm.conf(5): YES and FORCE without a number mean four jobs.
        oversubscribe_count=int(count) if count else 4 if how in {"YES", "FORCE"} else 1,
        max_time=float(seconds),
        max_nodes=math.inf if most is None else float(most),
        default=default,
        billing=None if billing is None else {tres_name(name): float(weight) for name, weight in billing.items()},
    )


def _expect(fits: bool, where: str, what: str, value: object) -> None:
    if not fits:
        raise ShapeError(f"{where}: {what}, not {_shown(value)}")


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _amount(item: Mapping[str, Any], keys: Mapping[str, int], where: str) -> float:
    for key, unit in keys.items():
        number = item.get(key)
        if number is not None:
            fits = type(number) in {int, float} and 0 < number < 2**40
            _expect(fits, where, f"{key}: expected a number above 0", number)
            return float(number) * unit
    return 0.0


def _list(value: Any, where: str) -> list[Any]:
    _expect(isinstance(value, list) and bool(value), where, "expected a list with at least one entry", value)
    return list(value)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    _expect(isinstance(value, Mapping), where, "expected an object", value)
    return dict(value)
