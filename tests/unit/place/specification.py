"""The placement model once more, in CVXPY: its executable specification.

Written from decision 0020, not from `integer_program`: job by job (no grouping), every node and dimension a row
(nothing left out as redundant), in plain units. Equal optima on thousands of instances are the proof that the shortcuts
of `integer_program` are exact. Solved with GLPK_MI as in the paper, which CVXPY reaches through cvxopt.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rltuned.decide.place.ways import CROWD, CROWDING, WaySet


@dataclass(frozen=True)
class Shape:
    """Largest instance that a `Specification` takes."""

    jobs: int
    choices: int  # pairs of a job and one of its patterns
    nodes: int
    types: int


class Specification:
    """The model for instances up to `shape`, canonicalised by CVXPY once and solved with different numbers."""

    def __init__(self, shape: Shape) -> None:
        import cvxpy as cp  # two seconds, which only who makes one waits for

        self.shape = shape
        depth = shape.types + 3
        cells = shape.nodes * depth
        self._x: Any = cp.Variable(shape.choices, boolean=True)
        shared: Any = cp.Variable(shape.nodes, boolean=True)
        over: Any = cp.Variable(shape.nodes, nonneg=True)
        self._parameters: dict[str, Any] = {
            "worth": cp.Parameter(shape.choices),
            "on": cp.Parameter(shape.choices, nonneg=True),
            "of_job": cp.Parameter((shape.jobs, shape.choices), nonneg=True),
            "use": cp.Parameter((cells, shape.choices), nonneg=True),
            "free": cp.Parameter(cells, nonneg=True),
            "joins": cp.Parameter((shape.nodes, shape.choices), nonneg=True),
            "tokens": cp.Parameter((shape.nodes, shape.choices), nonneg=True),
            "member": cp.Parameter((shape.nodes, shape.nodes), nonneg=True),
            "count": cp.Parameter(shape.nodes, nonneg=True),
            "cpus": cp.Parameter((shape.nodes, shape.choices), nonneg=True),
            "mem": cp.Parameter((shape.nodes, shape.choices), nonneg=True),
            "crowding": cp.Parameter(shape.nodes, nonneg=True),
        }
        p = self._parameters
        self._problem: Any = cp.Problem(
            cp.Maximize(p["worth"] @ self._x - p["crowding"] @ over),
            [
                self._x <= p["on"],
                p["of_job"] @ self._x <= 1,
                p["use"] @ self._x <= p["free"],
                p["joins"] @ self._x <= shape.jobs * shared,
                p["tokens"] @ self._x + p["member"] @ shared <= p["count"],
                over >= p["cpus"] @ self._x - CROWD,
                over >= p["mem"] @ self._x - CROWD,
            ],
        )

    def optimum(self, ways: WaySet) -> float:
        """The best objective over the ways on offer.

        Raises:
            ValueError: the instance is larger than the shape.
        """
        problem, columns, classes = ways.problem, ways.columns, ways.classes
        shape, depth = self.shape, self.shape.types + 3
        choices = [(k, j) for j, c in enumerate(columns.job_class) for k in classes.jobs[c].tolist()]
        if problem.free.shape != (shape.nodes, depth):
            raise ValueError("the instance has another shape than the specification")
        if len(choices) > shape.choices or len(problem) > shape.jobs:
            raise ValueError(f"{len(choices)} choices of {len(problem)} jobs are too many for the specification")
        values = {name: np.zeros(p.shape) for name, p in self._parameters.items()}
        use = np.zeros((shape.nodes, depth, shape.choices))
        for at, (k, j) in enumerate(choices):
            values["worth"][at] = problem.weight[k] * problem.size[k] - columns.cost[j]
            values["on"][at] = 1.0
            values["of_job"][k, at] = 1.0
            for part in np.flatnonzero(columns.part_pattern == j):
                node = int(columns.part_node[part])
                use[node, :, at] += columns.part_use[part]
                values["joins"][node, at] = 1.0
                values["cpus"][node, at] += columns.part_use[part, depth - 3] / max(problem.total[node, -2], 1.0)
                values["mem"][node, at] += columns.part_use[part, depth - 2] / max(problem.total[node, -1], 1.0)
            for token in np.flatnonzero(columns.token_pattern == j):
                values["tokens"][columns.token_class[token], at] += 1.0
        values["use"] = use.reshape(-1, shape.choices)
        values["free"] = problem.free.ravel()
        for n, rows in enumerate(classes.nodes):
            values["member"][n, rows] = 1.0
            values["count"][n] = len(rows)
        values["crowding"] = CROWDING * problem.node_sizes
        for name, value in values.items():
            self._parameters[name].value = value
        self._problem.solve(solver="GLPK_MI")
        return float(self._problem.value)
