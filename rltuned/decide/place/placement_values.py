"""What is placed, and the answer."""

import enum
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from rltuned.core.errors import PlacementError
from rltuned.core.tables import Bools, Codes, Floats


class Kind(enum.StrEnum):
    """Kinds of placement (paper Algorithm 1)."""

    PACK = "pack"
    """By best fit, next to others."""
    SPREAD = "spread"
    """On idle nodes, which nobody else may join."""


class SolveOutcome(enum.StrEnum):
    """How the solver ended. Where it found no solution, or none better, the greedy one counts."""

    OPTIMAL = "optimal"
    """Within the configured gap."""
    FEASIBLE = "feasible"
    """Time limit; the best solution so far."""
    TIMEOUT = "timeout"
    """Time limit without a solution."""
    INFEASIBLE = "infeasible"
    """No job can start now."""
    ERROR = "error"
    """The solver failed (numerically)."""


@dataclass(frozen=True)
class PlacementProblem:
    """K jobs in rank order on M nodes of T GPU types. Capacities are what is free now."""

    weight: Floats
    """(K,) worth per GPU of starting the job, in (0, 1], decreasing with rank."""
    nodes: Codes
    """(K,) least number of nodes."""
    gpus: Codes
    """(K,) GPUs in all."""
    gpus_per_node: Codes
    """(K,) exact GPUs per node, 0: any split of the total."""
    gpu_type: Codes
    """(K,) column of the types, −1 any (but one type per job), T or more: a type that no node has."""
    cpus: Codes
    """(K,) CPUs in all, at least one per node."""
    mem: Floats
    """(K,) MiB in all."""
    tmp: Floats
    """(K,) MiB of local disk per node."""
    exclusive: Bools
    """(K,) must have its nodes for itself (asked for whole nodes, or OverSubscribe is NO already)."""
    eligible: Bools
    """(K, M) nodes that the job may use: partition, features, node lists."""
    free: Floats
    """(M, T+3) free GPUs by type, CPUs, MiB of memory and of local disk."""
    total: Floats
    """(M, T+2) likewise what the nodes have in all, without the disk."""
    idle: Bools
    """(M,) wholly idle."""

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def types(self) -> int:
        """T, the number of GPU types."""
        return int(self.free.shape[1]) - 3

    @property
    def total_gpus(self) -> Floats:
        """(M, T)"""
        return self.total[:, :-2]

    @cached_property
    def size(self) -> Floats:
        """(K,) GPUs of a job; a CPU job counts as the GPUs that go with its CPUs or memory, whichever are more, in this
        cluster (at least 0.05). Without GPUs in the cluster, nodes take their place.
        """
        devices = float(self.total_gpus.sum()) or float(len(self.total))
        per_cpu, per_mib = (devices / max(float(amount.sum()), 1.0) for amount in self.total.T[-2:])
        equivalent = np.maximum(np.maximum(self.cpus * per_cpu, self.mem * per_mib), 0.05)
        return np.where(self.gpus > 0, self.gpus, equivalent).astype(np.float64)

    @cached_property
    def node_sizes(self) -> Floats:
        """(M,) GPUs of a node; 1 for a node without."""
        return np.asarray(np.maximum(self.total_gpus.sum(axis=1), 1.0))

    def share(self, job: int, gpus: int) -> tuple[int, float]:
        """CPUs and MiB that a job takes from a node which gives it `gpus` GPUs: even where its nodes are equal, else in
        proportion to the GPUs; CPUs rounded up.
        """
        cpus, mem = int(self.cpus[job]), float(self.mem[job])
        if self.gpus_per_node[job] > 0 or self.gpus[job] == 0:
            nodes = int(self.nodes[job])
            return -(-cpus // nodes), mem / nodes
        total = int(self.gpus[job])
        return max(1, -(-cpus * gpus // total)), mem * gpus / total

    def validate(self) -> None:
        """Check shapes and signs.

        Raises:
            PlacementError: naming the column that is wrong.
        """
        k, m, types = len(self.weight), len(self.free), self.types
        shapes = {"eligible": (k, m), "free": (m, types + 3), "total": (m, types + 2), "idle": (m,)}
        for column in fields(self):
            value = np.asarray(getattr(self, column.name))
            shape = shapes.get(column.name, (k,))
            if value.shape != shape:
                raise PlacementError(f"placement problem: {column.name} has shape {value.shape}, expected {shape}")
            if (
                column.name != "gpu_type"
                and value.dtype != np.bool_
                and not bool(np.all((value >= 0) & (value < np.inf)))
            ):
                raise PlacementError(f"placement problem: {column.name} has a negative or non-finite value")
        if np.any(self.nodes < 1) or np.any(self.cpus < self.nodes):
            raise PlacementError("placement problem: a job needs at least one node and one CPU per node")
        fixed = self.gpus_per_node > 0
        if np.any(self.gpus[fixed] != self.gpus_per_node[fixed] * self.nodes[fixed]):
            raise PlacementError("placement problem: gpus is not nodes × gpus_per_node")
        if np.any(np.diff(self.weight) > 0):
            raise PlacementError("placement problem: weight must not increase with rank")


@dataclass(frozen=True)
class Way:
    """One way of placing one job: how many nodes of which rows, and what it takes from each."""

    job: int
    """Row of the problem."""
    kind: Kind
    nodes: tuple[int, ...]
    """Node rows, in ascending order. What is taken of each:"""
    gpus: tuple[int, ...]
    gpu_type: int
    """Column of the types, −1 for a job without GPUs."""
    cpus: tuple[int, ...]
    mem: tuple[float, ...]


@dataclass(frozen=True)
class Placement:
    """The solution: at most one way per job."""

    outcome: SolveOutcome
    ways: tuple[Way, ...]
    """In rank order of their jobs."""
    objective: float
