"""What is placed, and the answer."""

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Codes, Floats


class Kind(enum.StrEnum):
    """Kinds of placement (paper Algorithm 1: pack and spread; hierarchical for jobs over several nodes)."""

    PACK = "pack"
    """On the node that leaves the least fragmentation, next to others."""
    SPREAD = "spread"
    """On idle nodes, which nobody else may join."""
    HIERARCHICAL = "hierarchical"
    """Several nodes, whole ones first, then the rest packed."""


class SolveOutcome(enum.StrEnum):
    """How the solver ended."""

    OPTIMAL = "optimal"
    """Within the configured gap."""
    FEASIBLE = "feasible"
    """Time limit; the best solution so far (or the greedy one, if better)."""
    TIMEOUT = "timeout"
    """Time limit without a solution; the greedy one counts."""
    INFEASIBLE = "infeasible"
    ERROR = "error"


@dataclass(frozen=True)
class PlacementProblem:
    """K jobs in rank order on M nodes. T GPU types, S start slots. All capacities are what is free at a slot."""

    weight: Floats
    """(K,) worth of starting the job, decreasing with rank."""
    nodes: Codes
    """(K,) least number of nodes."""
    gpus: Codes
    """(K,) GPUs in all."""
    gpus_per_node: Codes
    """(K,) exact GPUs per node, 0: any split of the total."""
    gpu_type: Codes
    """(K,) column of the types, −1 any (but one type per job)."""
    cpus: Codes
    mem: Floats
    """(K,) MiB in all."""
    tmp: Floats
    """(K,) MiB of local disk per node."""
    eligible: npt.NDArray[np.bool_]
    """(K, M) nodes that the job may use: partition, features, node lists."""
    slot_time: Floats
    """(S,) seconds from now at which a slot begins; slot 0 is now."""
    free_gpus: npt.NDArray[np.int32]
    """(S, M, T)"""
    free_cpus: npt.NDArray[np.int32]
    """(S, M)"""
    free_mem: Floats
    """(S, M)"""
    free_tmp: Floats
    """(S, M)"""
    idle: npt.NDArray[np.bool_]
    """(S, M) wholly idle."""
    total_gpus: npt.NDArray[np.int32]
    """(M, T)"""
    total_cpus: npt.NDArray[np.int32]
    """(M,)"""
    total_mem: Floats
    """(M,)"""


@dataclass(frozen=True)
class Way:
    """One way of placing one job: how many nodes of which rows, and what it takes from each."""

    job: int
    """Row of the problem."""
    kind: Kind
    slot: int
    nodes: tuple[int, ...]
    """Node rows, in ascending order."""
    gpus: tuple[int, ...]
    """GPUs taken from each of `nodes`."""
    gpu_type: int
    cpus: tuple[int, ...]
    mem: tuple[float, ...]


@dataclass(frozen=True)
class Placement:
    """The solution: at most one way per job."""

    outcome: SolveOutcome
    ways: tuple[Way, ...]
    objective: float
    bound: float
    """Best possible objective as far as the solver knows."""
    num_ways: Codes
    """(K,) distinct kinds that were on offer for slot 0."""
    message: str = ""
