"""How the run time depends on the number of nodes.

``python -m studies.scaling FILE > studies/scaling.toml``. FILE is adaptdl-throughputs.csv.gz: seconds of a
training step of six models by GPUs on each node and batch per GPU (petuum/adaptdl, branch osdi21-artifact,
simulator/traces; Apache-2.0; Qiao et al., OSDI'21).
"""

import csv
import gzip
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from rltuned.core.tables import Floats
from rltuned.decide.resizing import Scaling

FOUND: Final = Path(__file__).with_suffix(".toml")
POOLED: Final = "pooled"
"""The geometric mean of all models: what is assumed of a job that nothing is known of."""
MOST_NODES: Final = 64
"""Columns of a curve."""
NODES: Final = (1, 2, 3, 4, 6, 8, 12, 16)
PER_NODE: Final = (1, 2, 4)
FULL: Final = 4
"""Nodes whose GPUs the global batch fills. On fewer, gradients are accumulated; on more, a GPU has a smaller batch."""
_HEAD: Final = """\
# How the run time of six models depends on the number of nodes. Made by studies/scaling.py from the step times that
# Pollux was simulated with: petuum/adaptdl, branch osdi21-artifact, simulator/traces/*/{placements,scalability}.csv
# (Qiao et al., OSDI'21), Apache-2.0, copyright Petuum, Inc. `rltuned.decide.resizing.Scaling` says what
# the numbers are.
"""

Measured = dict[str, Floats]
"""(B, 3) batch per GPU, step and synchronisation in seconds, by placement; "3x2": two GPUs on each of 3."""


@cache
def scalings() -> Mapping[str, Scaling]:
    """What was found, by name; `POOLED` is the first."""
    return {name: Scaling(**numbers) for name, numbers in tomllib.loads(FOUND.read_text(encoding="utf-8")).items()}


def read(path: Path) -> dict[str, Measured]:
    """The measurements of each model, by batch per GPU."""
    found: dict[str, dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            nodes, gpus = int(row["num_nodes"]), int(row["num_gpus"])
            values = tuple(float(row[name]) for name in ("local_batch", "step_time", "sync_time"))
            if gpus % nodes == 0 and len(set(row["placement"])) <= 1:
                found[row["model"]][f"{nodes}x{gpus // nodes}"].append(values)
    return {model: {key: np.array(sorted(rows)) for key, rows in of.items()} for model, of in found.items()}


def at(measured: Floats, batch: float) -> Floats:
    """(2,) step and synchronisation at a batch per GPU, linear in logarithms, constant beyond what was measured."""
    logs = np.log(np.maximum(measured, 1e-9))
    return np.exp([np.interp(np.log(batch), logs[:, 0], logs[:, column]) for column in (1, 2)])


def strong(measured: Measured) -> Floats:
    """(len(NODES),) logarithm of the time of a global batch over that on one node, mean over GPUs per node."""
    logs = []
    for each in PER_NODE:
        of = [measured[f"{nodes}x{each}"] for nodes in NODES]
        largest = min(part[-1, 0] for part in of)
        times = []
        for nodes, part in zip(NODES, of, strict=True):
            steps = -(-FULL // nodes)
            step, sync = at(part, largest * FULL / (nodes * steps))
            times.append(steps * (step - sync) + sync)
        logs.append(np.log(np.array(times) / times[0]))
    return np.asarray(np.mean(logs, axis=0))


def fit(logs: Floats) -> tuple[Scaling, float]:
    """The numbers nearest to what was measured, and the root mean square error of ln."""
    tried = [Scaling(p, s) for p in np.arange(101) / 100 for s in np.arange(41) / 200]
    index = np.array(NODES) - 1
    errors = [float(np.sqrt(np.mean((np.log(each.more_nodes(NODES[-1])[index]) - logs) ** 2))) for each in tried]
    best = int(np.argmin(errors))
    return tried[best], errors[best]


def main(path: Path) -> str:
    """The file."""
    measured = read(path)
    logs = {model: strong(of) for model, of in sorted(measured.items())}
    lines = [_HEAD]
    for model, nodes in {POOLED: np.mean(list(logs.values()), axis=0), **logs}.items():
        found, error = fit(nodes)
        lines.append(f"[{model}]  # measured on {', '.join(map(str, NODES))} nodes: {np.exp(nodes).round(2).tolist()}")
        lines.append(f"parallel = {found.parallel:.2f}  # error of the fit {error:.0%}")
        lines.append(f"sync = {found.sync:.3f}\n")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1])) + "\n")
