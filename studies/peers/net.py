"""The network of a peer, in NumPy: dense layers with ReLU between them, the same for each row."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from rltuned.core.tables import Floats, Singles

HIDDEN: Final = (32, 16, 8)
"""Units of the hidden layers, of both peers."""


@dataclass(frozen=True)
class Net:
    """An MLP of one output."""

    name: str
    """Of the model."""
    weights: Mapping[str, Singles]
    """``layer<i>.kernel`` (in, out) and ``layer<i>.bias`` (out,); it sees (x − ``input.mean``) / ``input.scale``."""

    def network(self, rows: Singles) -> Floats:
        """(n,) output for (n, inputs) rows."""
        # In double precision neither the machine nor the place of a row in the matrix shows in an output.
        value = rows.astype(np.float64)
        for index, (kernel, bias) in enumerate(self._layers):
            value = (np.maximum(value, 0.0) if index else value) @ kernel + bias
        return np.asarray(value[:, 0])

    @cached_property
    def _layers(self) -> list[tuple[Floats, Floats]]:
        """Kernel and bias of each layer, the normalisers folded into the first."""
        held = {name: value.astype(np.float64) for name, value in self.weights.items()}
        layers = [(held[f"layer{at}.kernel"], held[f"layer{at}.bias"]) for at in range(len(HIDDEN) + 1)]
        kernel = layers[0][0] / held["input.scale"][:, None]
        layers[0] = kernel, layers[0][1] - held["input.mean"] @ kernel
        return layers


def untrained(name: str, inputs: int, seed: int) -> Net:
    """A network that has learned nothing: kernels as He et al. 2015 (normal, variance 2 / inputs), biases 0."""
    rng = np.random.default_rng(seed)
    weights = {"input.mean": np.zeros(inputs, dtype=np.float32), "input.scale": np.ones(inputs, dtype=np.float32)}
    for at, shape in enumerate(pairwise((inputs, *HIDDEN, 1))):
        weights[f"layer{at}.kernel"] = (rng.standard_normal(shape) * np.sqrt(2.0 / shape[0])).astype(np.float32)
        weights[f"layer{at}.bias"] = np.zeros(shape[1], dtype=np.float32)
    return Net(name, weights)
