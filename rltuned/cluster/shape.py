"""`ClusterShape`: the hardware and partitions of a cluster without any jobs, and the short way to write one down."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rltuned.cluster.tables import NodeTable, Partition


@dataclass(frozen=True)
class ClusterShape:
    """A cluster with nothing running. Each node has GPUs of at most one type (`NodeTable.gpus` has one entry per row)."""

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
        matching: Sequence[Partition] = [p for p in self.partitions if p.name == name or (not name and p.default)]
        return matching[0] if matching else None
