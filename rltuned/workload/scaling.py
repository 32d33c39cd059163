"""How the run time of a job depends on its number of nodes.

The numbers are fitted to published measurements (`scaling.toml`); studies/scaling.py makes them.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import numpy as np

from rltuned.cluster.tables import Floats

POOLED: Final = "pooled"
"""The geometric mean of all models: what is assumed of a job that nothing is known of."""
NODES: Final = 64
"""Columns of a curve."""


@dataclass(frozen=True)
class Scaling:
    """How one model scales."""

    parallel: float
    """Amdahl's p: the part of the run time on one node that the nodes share."""
    sync: float
    """What doubling the nodes costs, of the run time on one node."""

    def more_nodes(self, n: int) -> Floats:
        """(n,) run time on 1 to n nodes with the same GPUs on each and one global batch, over that on one node."""
        nodes = np.arange(1, n + 1, dtype=np.float64)
        return np.asarray(1.0 - self.parallel * (1.0 - 1.0 / nodes) + self.sync * np.log2(nodes))


@cache
def scalings() -> Mapping[str, Scaling]:
    """By name; `POOLED` is the first."""
    text = (resources.files(__package__) / "scaling.toml").read_text(encoding="utf-8")
    return {name: Scaling(**numbers) for name, numbers in tomllib.loads(text).items()}
