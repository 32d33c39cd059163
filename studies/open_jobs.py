"""Rules for jobs that leave their nodes open, beside Slurm alone.

``python -m studies.open_jobs TRACE CLUSTER OPEN [RULE …]`` prints each rule over Slurm alone, on the same windows.
"""

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from rltuned.cluster.tables import Bools, Floats, Rows
from rltuned.evaluate.bootstrap import compare, counts
from rltuned.evaluate.case import Case
from rltuned.evaluate.evaluation import ready
from rltuned.evaluate.evaluation_settings import EvaluationSettings
from rltuned.evaluate.policies import rule_ranker
from rltuned.evaluate.windows import Split
from rltuned.simulate.engine import Ranker, Simulation
from rltuned.simulate.kernel import GPU
from rltuned.workload.shapes import read_shape
from studies.traces import read

HEAD: Final = 64
"""Jobs at the front of the queue that a rule looks at."""
METRICS: Final = ("jct_mean", "wait_mean", "jct_open", "jct_rigid", "wait_rigid", "gpu_seconds", "utilization")

Sizes = Callable[[Simulation, int], int]
"""Most nodes that a rule gives to a pending job; 0: it is left alone."""


def one_node(simulation: Simulation, row: int) -> int:
    """A job in all that fits into one node stays on one."""
    asked = simulation.asked
    return int(not asked.per_node[row] and asked.fewest[row] == 1)


def least(simulation: Simulation, row: int) -> int:
    """The least nodes of a range."""
    asked = simulation.asked
    return int(asked.nodes[row]) if asked.per_node[row] and asked.most_nodes[row] > asked.nodes[row] else 0


def equal_shares(simulation: Simulation, row: int) -> int:
    """As many nodes of a range as give it its share of all GPUs, if each job that runs or waits had the same."""
    asked, present = simulation.asked, len(simulation.pending) + len(simulation.running)
    share = int(asked.capacity[:, GPU].sum()) // max(present, 1) // max(int(asked.gpus[row]), 1)
    low = least(simulation, row)
    return min(max(share, low), int(asked.most_nodes[row])) if low else 0


RULES: Final[Mapping[str, Sizes]] = MappingProxyType(
    {"one-node": one_node, "least": least, "equal-shares": equal_shares}
)


class Narrowing:
    """Slurm's own order; each open job at the front of the queue may use the nodes that have most left for it."""

    ages = True
    at_once = True

    def __init__(self, sizes: Sizes) -> None:
        self._sizes, self._own = sizes, rule_ranker("multifactor")

    def fixed(self, simulation: Simulation) -> Floats | None:  # noqa: ARG002 - of the protocol
        """None: there is something to decide at each refresh."""
        return None

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """The keys of Slurm's own order, after narrowing."""
        keys, asked = self._own.keys(simulation, rows), simulation.asked
        left = simulation.free[:, GPU].astype(np.float64)
        for row in rows[np.argsort(keys, kind="stable")][:HEAD].tolist():
            if nodes := self._sizes(simulation, row):
                pool = np.flatnonzero(asked.pool_nodes[asked.pool[row]])
                chosen = pool[np.argsort(-left[pool], kind="stable")][:nodes]
                mask: Bools = np.zeros(len(left), dtype=np.bool_)
                mask[chosen] = True
                simulation.narrow(row, mask)
                left[chosen] -= asked.gpus[row]
        return keys


def simulate(case: Case, settings: EvaluationSettings, ranker: Ranker) -> dict[str, float]:
    """The metrics of one window."""
    simulation = Simulation(case.shape, case.submitted, case.own_estimates(), settings.simulated, asked=case.asked)
    simulation.run(ranker)
    result = simulation.result()
    times = result.first_start, result.end, result.runs
    return case.metrics(*times).as_dict() | case.of_open(*times)


def main(trace: str, cluster: str, left_open: str, *rules: str) -> str:
    """The table."""
    settings = EvaluationSettings(
        trace=trace, cluster=cluster, window=256, windows=30, estimates="noisy:1.5", split=Split.TEST, open=left_open
    )
    evaluation = ready(settings, read(trace), read_shape(cluster), "")
    rankers: dict[str, Callable[[], Ranker]] = {"Slurm": lambda: rule_ranker("multifactor")}
    for name in rules or RULES:
        rankers[name] = lambda name=name: Narrowing(RULES[name])  # type: ignore[misc]
    found = {name: [simulate(case, settings, make()) for case in evaluation.cases] for name, make in rankers.items()}
    drawn, lines = counts(len(evaluation.cases), settings.seed), [f"{trace} {cluster} {left_open}"]
    for name in list(found)[1:]:
        cells = []
        for metric in METRICS:
            values = np.array([[window[metric] for window in found[which]] for which in ("Slurm", name)])
            ratio = compare(values, drawn)[1][0]
            cells.append(f"{metric} {ratio.ratio:.3f} [{ratio.lo:.2f}, {ratio.hi:.2f}]")
        lines.append(f"{name}: {', '.join(cells)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(main(*sys.argv[1:]) + "\n")
