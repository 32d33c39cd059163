"""The integer program as matrices: maximise c·z subject to A z ≤ b, 0 ≤ z ≤ u, some z integer (docs/placement.md).

Columns, in this order: x (how often each pattern is used), open (a node of a class that is shared, so not taken
whole), over (CPU or memory crowding of a node by planned jobs), y (the k-th job of a class starts).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Bools, Floats
from rltuned.placement.ways import CROWD, CROWDING, WaySet


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


class _Rows:
    """Collects blocks of rows."""

    def __init__(self) -> None:
        self.row: list[npt.NDArray[np.intp]] = [np.zeros(0, dtype=np.intp)]
        self.column: list[npt.NDArray[np.intp]] = [np.zeros(0, dtype=np.intp)]
        self.value: list[Floats] = [np.zeros(0)]
        self.rhs: list[float] = []

    def add(
        self,
        row: npt.NDArray[np.intp],
        column: npt.NDArray[np.intp],
        value: Floats,
        rhs: Sequence[float],
    ) -> None:
        """One row per limit of `rhs`; `row` counts from 0 within the block."""
        self.row.append(row + len(self.rhs))
        self.column.append(column)
        self.value.append(value)
        self.rhs.extend(rhs)


class _Extra:
    """Collects the columns that are not patterns."""

    def __init__(self, patterns: int) -> None:
        self._patterns = patterns
        self.objective: list[float] = []
        self.upper: list[float] = []
        self.integer: list[bool] = []

    def add(self, worth: float, most: float, whole: bool) -> int:
        self.objective.append(worth)
        self.upper.append(most)
        self.integer.append(whole)
        return self._patterns + len(self.objective) - 1


def formulate(ways: WaySet) -> Model:
    """Build the matrices. Rows that no choice of patterns can violate are left out."""
    problem, classes, columns = ways.problem, ways.classes, ways.columns
    count = len(columns.patterns)
    members = np.array([len(jobs) for jobs in classes.jobs], dtype=np.float64)
    upper = members[columns.job_class]
    # How often a pattern fits on its own.
    if len(columns.part_pattern):
        cap = problem.free[columns.part_node]
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(columns.part_use > 0, np.floor(cap / columns.part_use + 1e-9), np.inf).min(axis=1)
        np.minimum.at(upper, columns.part_pattern, np.maximum(times, 0.0))
    objective = -columns.cost
    rows, extra = _Rows(), _Extra(count)
    _job_rows(ways, members, objective, rows, extra)
    opened = _whole_rows(ways, members, upper, rows, extra)
    _capacity_rows(ways, members, upper, opened, rows)
    _crowd_rows(ways, members, upper, rows, extra)
    return Model(
        row=np.concatenate(rows.row),
        column=np.concatenate(rows.column),
        value=np.concatenate(rows.value),
        rhs=np.array(rows.rhs, dtype=np.float64),
        objective=np.concatenate((objective, extra.objective)),
        upper=np.concatenate((upper, extra.upper)),
        integer=np.concatenate((np.ones(count, dtype=np.bool_), np.array(extra.integer, dtype=np.bool_))),
        patterns=count,
    )


def _job_rows(ways: WaySet, members: Floats, objective: Floats, rows: _Rows, extra: _Extra) -> None:
    """Each job at most once, and what starting it is worth.

    Equal jobs differ only in weight, so the best-ranked of them start: y[k] says that at least k+1 of them do. Their
    worth falls with k.
    """
    problem, columns, first = ways.problem, ways.columns, ways.classes.first_job
    c, patterns = columns.job_class, np.arange(len(columns.patterns))
    rows.add(c, patterns, np.ones(len(c)), members.tolist())
    alone = members[c] == 1
    worth = problem.weight[first] * problem.size[first]
    objective[alone] += worth[c][alone]
    for several in np.flatnonzero(members > 1).tolist():
        mine = np.flatnonzero(c == several)
        jobs = ways.classes.jobs[several]
        worths = problem.weight[jobs] * problem.size[jobs[0]]
        units = [extra.add(worth, 1.0, False) for worth in worths.tolist()]
        cells = np.concatenate((units, mine)).astype(np.intp)
        values = np.concatenate((np.ones(len(units)), -np.ones(len(mine))))
        rows.add(np.zeros(len(cells), dtype=np.intp), cells, values, [0.0])


def _whole_rows(ways: WaySet, members: Floats, upper: Floats, rows: _Rows, extra: _Extra) -> dict[int, int]:
    """Σ nodes taken whole + shared nodes ≤ nodes, for each class of which both might run out. Node → open column."""
    columns, classes = ways.columns, ways.classes
    opened: dict[int, int] = {}
    named = np.unique(columns.part_node)
    for n in np.unique(columns.token_class).tolist():
        size = len(classes.nodes[n])
        mine, tokens = np.unique(columns.token_pattern[columns.token_class == n], return_counts=True)
        upper[mine] = np.minimum(upper[mine], size // tokens)
        shared = named[classes.node_of[named] == n]
        most = _most(
            np.zeros(len(mine), dtype=np.intp), columns.job_class[mine], tokens.astype(np.float64), upper[mine], members
        )
        if most.sum() + len(shared) <= size:
            continue
        for node in shared.tolist():
            opened[node] = extra.add(0.0, 1.0, True)
        cells = np.array([*mine.tolist(), *(opened[node] for node in shared.tolist())], dtype=np.intp)
        values = np.concatenate((tokens.astype(np.float64), np.ones(len(shared))))
        rows.add(np.zeros(len(cells), dtype=np.intp), cells, values, [float(size)])
    return opened


def _most(
    cell: npt.NDArray[np.intp], job_class: npt.NDArray[np.intp], amount: Floats, upper: Floats, members: Floats
) -> Floats:
    """Upper bound of Σ amount·x in each cell (ascending, 0…), given x ≤ upper and that a class uses no more patterns
    than it has jobs.
    """
    if len(cell) == 0:
        return np.zeros(0)
    key = cell * len(members) + job_class
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(key)) + 1))
    by_pattern = np.add.reduceat((amount * upper)[order], starts)
    by_job = np.maximum.reduceat(amount[order], starts) * members[job_class[order[starts]]]
    return np.bincount(key[starts] // len(members), np.minimum(by_pattern, by_job)).astype(np.float64)


def _capacity_rows(ways: WaySet, members: Floats, upper: Floats, opened: dict[int, int], rows: _Rows) -> None:
    """What patterns take from a node ≤ what is free there, in each dimension.

    Amounts are shares of what is free: MiB beside GPUs would be badly scaled.
    """
    columns, free = ways.columns, ways.problem.free
    nodes, depth = free.shape
    open_of = np.full(nodes, -1, dtype=np.intp)
    open_of[list(opened)] = list(opened.values())
    part, dimension = np.nonzero(columns.part_use)
    if len(part) == 0:
        return
    amount = columns.part_use[part, dimension]
    pattern = columns.part_pattern[part]
    cells, row = np.unique(columns.part_node[part] * depth + dimension, return_inverse=True)
    node, dim = np.divmod(cells, depth)
    limit = free[node, dim]
    most = _most(row, columns.job_class[pattern], amount, upper[pattern], members)
    # The CPU row ties every pattern of a node to its open column: each takes at least one CPU.
    linked = open_of[node] >= 0
    keep = (most > limit) | (linked & (dim == depth - 3))
    # Nothing fits where nothing is free.
    upper[pattern[(limit <= 0)[row]]] = 0.0
    keep &= limit > 0
    index = np.cumsum(keep) - 1
    kept = keep[row]
    linked &= keep
    rows.add(
        np.concatenate((index[row[kept]], index[linked])),
        np.concatenate((pattern[kept], open_of[node[linked]])),
        np.concatenate((amount[kept] / limit[row[kept]], np.full(int(linked.sum()), -1.0))),
        np.where(linked, 0.0, 1.0)[keep].tolist(),
    )


def _crowd_rows(ways: WaySet, members: Floats, upper: Floats, rows: _Rows, extra: _Extra) -> None:
    """Planned jobs on one node may take `CROWD` of its CPUs and of its memory; `over` measures what goes beyond."""
    columns, problem = ways.columns, ways.problem
    share = columns.part_use[:, -3:-1] / np.maximum(problem.total[columns.part_node, -2:], 1.0)
    pattern = np.repeat(columns.part_pattern, 2)
    cells, row = np.unique(columns.part_node[:, None] * 2 + np.arange(2), return_inverse=True)
    row, amount = row.ravel(), share.ravel()
    keep = _most(row, columns.job_class[pattern], amount, upper[pattern], members) > CROWD
    if not keep.any():
        return
    node = cells[keep] // 2
    size = problem.node_sizes
    most = float(len(problem))
    over = {n: extra.add(-CROWDING * float(size[n]), most, False) for n in np.unique(node).tolist()}
    index = np.cumsum(keep) - 1
    kept = keep[row] & (amount > 0)
    rows.add(
        np.concatenate((index[row[kept]], np.arange(len(node)))),
        np.concatenate((pattern[kept], [over[n] for n in node.tolist()])).astype(np.intp),
        np.concatenate((amount[kept], np.full(len(node), -1.0))),
        [CROWD] * len(node),
    )
