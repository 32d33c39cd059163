"""The integer program as matrices: maximise c·z subject to A z ≤ b, 0 ≤ z ≤ u, some z integer (docs/placement.md).

Columns, in this order: x (how often each pattern is used), open (a node of a class that is shared, so not taken
whole), over (CPU or memory crowding of a node by planned jobs), y (the k-th job of a class has started by a slot).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Bools, Floats
from rltuned.placement.base import PlacementProblem
from rltuned.placement.ways import CROWD, CROWDING, WaySet

RowName = tuple[str | int, ...]


@dataclass(frozen=True)
class Model:
    """A is sparse (COO). R rows, V columns, the first P of them patterns."""

    row: npt.NDArray[np.intp]
    column: npt.NDArray[np.intp]
    value: Floats
    rhs: Floats
    """(R,) b."""
    objective: Floats
    """(V,) c."""
    upper: Floats
    """(V,) u."""
    integer: Bools
    """(V,)"""
    patterns: int
    row_names: tuple[RowName, ...]
    """("job", class), ("slot", class, s), ("capacity", node, s, dimension), ("whole", node class), ("crowd", node, dimension)."""
    column_names: tuple[RowName, ...]
    """("x", pattern), ("open", node), ("over", node), ("y", class, k, s)."""


class _Rows:
    """Collects blocks of rows."""

    def __init__(self) -> None:
        self.row: list[npt.NDArray[np.intp]] = []
        self.column: list[npt.NDArray[np.intp]] = []
        self.value: list[Floats] = []
        self.rhs: list[float] = []
        self.names: list[RowName] = []

    def add(self, name: RowName, columns: Sequence[int] | npt.NDArray[np.intp], values: Sequence[float] | Floats, rhs: float) -> None:
        self.row.append(np.full(len(columns), len(self.rhs), dtype=np.intp))
        self.column.append(np.asarray(columns, dtype=np.intp))
        self.value.append(np.asarray(values, dtype=np.float64))
        self.rhs.append(rhs)
        self.names.append(name)


def formulate(ways: WaySet) -> Model:
    """Build the matrices. Rows that no choice of patterns can violate are left out."""
    problem, classes, columns = ways.problem, ways.classes, ways.columns
    count = len(columns.patterns)
    members = np.array([len(jobs) for jobs in classes.jobs], dtype=np.float64)
    upper = members[columns.job_class]
    free = problem.free
    # How often a pattern fits on its own.
    if len(columns.part_pattern):
        cap = free[columns.slot[columns.part_pattern], columns.part_node]
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(columns.part_use > 0, np.floor(cap / columns.part_use + 1e-9), np.inf).min(axis=1)
        np.minimum.at(upper, columns.part_pattern, np.maximum(times, 0.0))
    objective = -columns.cost
    rows = _Rows()
    names: list[RowName] = [("x", j) for j in range(count)]
    extra_objective: list[float] = []
    extra_upper: list[float] = []
    extra_integer: list[bool] = []

    def new_column(name: RowName, worth: float, most: float, whole: bool) -> int:
        names.append(name)
        extra_objective.append(worth)
        extra_upper.append(most)
        extra_integer.append(whole)
        return len(names) - 1

    _job_rows(ways, members, objective, rows, new_column)
    opened = _whole_rows(ways, members, upper, rows, new_column)
    _capacity_rows(ways, members, upper, opened, rows)
    _crowd_rows(ways, members, upper, rows, new_column)
    return Model(
        row=np.concatenate(rows.row) if rows.row else np.zeros(0, dtype=np.intp),
        column=np.concatenate(rows.column) if rows.column else np.zeros(0, dtype=np.intp),
        value=np.concatenate(rows.value) if rows.value else np.zeros(0),
        rhs=np.array(rows.rhs),
        objective=np.concatenate((objective, extra_objective)),
        upper=np.concatenate((upper, extra_upper)),
        integer=np.concatenate((np.ones(count, dtype=np.bool_), np.array(extra_integer, dtype=np.bool_))),
        patterns=count,
        row_names=tuple(rows.names),
        column_names=tuple(names),
    )


NewColumn = Callable[[RowName, float, float, bool], int]


def _job_rows(ways: WaySet, members: Floats, objective: Floats, rows: _Rows, new_column: NewColumn) -> None:
    """Each job at most once, and what starting it is worth.

    Equal jobs differ only in weight, so the best-ranked of them start first: y[k, s] says that at least k+1 of them
    have started by slot s. Their worth falls with k and, being a difference of discounts, is counted slot by slot:
    Σ_s weight_k · size · (d_s − d_next) · y[k, s]. The sum telescopes to weight_k · size · d of the slot it starts at.
    """
    problem, columns = ways.problem, ways.columns
    order = np.argsort(columns.job_class, kind="stable")
    starts = np.searchsorted(columns.job_class[order], np.arange(len(members) + 1))
    for c, jobs in enumerate(ways.classes.jobs):
        mine = order[starts[c] : starts[c + 1]]
        if len(mine) == 0:
            continue
        rows.add(("job", c), mine, np.ones(len(mine)), members[c])
        worth = problem.weight[jobs] * problem.size[jobs[0]]
        slot = columns.slot[mine]
        if len(jobs) == 1:
            objective[mine] += worth[0] * columns.discount[slot]
            continue
        used = np.unique(slot)
        steps = columns.discount[used] - np.append(columns.discount[used[1:]], 0.0)
        for s, step in zip(used.tolist(), steps.tolist(), strict=True):
            started = mine[slot <= s]
            units = [new_column(("y", c, k, s), float(worth[k]) * step, 1.0, False) for k in range(len(jobs))]
            rows.add(
                ("slot", c, s),
                np.concatenate((units, started)).astype(np.intp),
                np.concatenate((np.ones(len(units)), -np.ones(len(started)))),
                0.0,
            )


def _whole_rows(ways: WaySet, members: Floats, upper: Floats, rows: _Rows, new_column: NewColumn) -> dict[int, int]:
    """Σ nodes taken whole + shared nodes ≤ nodes, for each class of which both might run out. Node → open column."""
    columns, classes = ways.columns, ways.classes
    opened: dict[int, int] = {}
    named = np.unique(columns.part_node)
    for n in np.unique(columns.token_class).tolist():
        size = len(classes.nodes[n])
        mine, tokens = np.unique(columns.token_pattern[columns.token_class == n], return_counts=True)
        upper[mine] = np.minimum(upper[mine], size // tokens)
        shared = named[classes.node_of[named] == n]
        if _most(columns.job_class[mine], tokens.astype(np.float64), upper[mine], members) + len(shared) <= size:
            continue
        for node in shared.tolist():
            opened[node] = new_column(("open", node), 0.0, 1.0, True)
        cells = [*mine.tolist(), *(opened[node] for node in shared.tolist())]
        rows.add(("whole", n), cells, [*tokens.tolist(), *([1.0] * len(shared))], size)
    return opened


def _most(job_class: npt.NDArray[np.intp], amount: Floats, upper: Floats, members: Floats) -> float:
    """Upper bound of Σ amount·x, given x ≤ upper and that a class uses no more patterns than it has jobs."""
    order = np.argsort(job_class, kind="stable")
    job_class = job_class[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(job_class)) + 1))
    by_pattern = np.add.reduceat((amount * upper)[order], starts)
    by_job = np.maximum.reduceat(amount[order], starts) * members[job_class[starts]]
    return float(np.minimum(by_pattern, by_job).sum())


def _capacity_rows(ways: WaySet, members: Floats, upper: Floats, opened: dict[int, int], rows: _Rows) -> None:
    """What patterns that have started by a slot take from a node ≤ what is free there then, in each dimension.

    A job stays once it has started. Between two slots at which nothing can start on a node, usage is the same and
    free capacity does not shrink: only slots with a start need a row.
    """
    columns, free = ways.columns, ways.problem.free
    depth = free.shape[2]
    part, dimension = np.nonzero(columns.part_use)
    amount = columns.part_use[part, dimension]
    pattern = columns.part_pattern[part]
    cell = columns.part_node[part] * depth + dimension
    slot = columns.slot[pattern]
    order = np.lexsort((pattern, slot, cell))
    pattern, cell, slot, amount = pattern[order], cell[order], slot[order], amount[order]
    job_class, worst = columns.job_class[pattern], amount * upper[pattern]
    cuts = np.flatnonzero(np.diff(cell)) + 1
    total = np.add.reduceat(worst, np.concatenate(([0], cuts))) if len(cell) else np.zeros(0)
    for low, high, most in zip([0, *cuts.tolist()], [*cuts.tolist(), len(cell)], total.tolist(), strict=True):
        if low == high:
            continue
        node, d = divmod(int(cell[low]), depth)
        open_column = opened.get(node)
        if open_column is None and most <= free[slot[low], node, d]:
            continue
        ends = np.append(np.flatnonzero(np.diff(slot[low:high])) + 1, high - low) + low
        for end in ends.tolist():
            s = int(slot[end - 1])
            limit = float(free[s, node, d])
            fits = _most(job_class[low:end], amount[low:end], upper[pattern[low:end]], members) <= limit
            # The CPU row ties every pattern of a node to its open column: each takes at least one CPU.
            if fits and (open_column is None or d != depth - 3):
                continue
            if limit <= 0:
                upper[pattern[low:end]] = 0.0
                continue
            # As shares of what is free: MiB beside GPUs would be badly scaled.
            if open_column is None:
                rows.add(("capacity", node, s, d), pattern[low:end], amount[low:end] / limit, 1.0)
            else:
                rows.add(
                    ("capacity", node, s, d),
                    np.append(pattern[low:end], open_column),
                    np.append(amount[low:end] / limit, -1.0),
                    0.0,
                )


def _crowd_rows(ways: WaySet, members: Floats, upper: Floats, rows: _Rows, new_column: NewColumn) -> None:
    """Planned jobs on one node may take `CROWD` of its CPUs and of its memory; `over` measures what goes beyond."""
    columns, problem = ways.columns, ways.problem
    depth = problem.free.shape[2]
    totals = np.stack([problem.total_cpus, problem.total_mem], axis=1).astype(np.float64)
    node_size = node_sizes(problem)
    share = columns.part_use[:, depth - 3 : depth - 1] / np.maximum(totals[columns.part_node], 1.0)
    order = np.argsort(columns.part_node, kind="stable")
    node = columns.part_node[order]
    cuts = np.flatnonzero(np.diff(node)) + 1
    for mine in np.split(order, cuts) if len(order) else []:
        pattern = columns.part_pattern[mine]
        at = int(columns.part_node[mine[0]])
        over: int | None = None
        for dimension in range(2):
            if _most(columns.job_class[pattern], share[mine, dimension], upper[pattern], members) <= CROWD:
                continue
            if over is None:
                over = new_column(("over", at), -CROWDING * float(node_size[at]), float(len(problem)), False)
            rows.add(
                ("crowd", at, dimension),
                np.append(pattern, over),
                np.append(share[mine, dimension], -1.0),
                CROWD,
            )


def node_sizes(problem: PlacementProblem) -> Floats:
    """(M,) GPUs of a node; 1 for a node without."""
    return np.maximum(problem.total_gpus.sum(axis=1), 1).astype(np.float64)
