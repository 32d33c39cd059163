"""The integer program as matrices: maximise c·z subject to A z ≤ b, 0 ≤ z ≤ u, some z integer (decision 0020).

Columns, in this order: x (how often each pattern is used), open (a node of a class that is shared, so not taken
whole), over (CPU or memory crowding of a node by planned jobs), y (the k-th job of a class starts).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rltuned.core.tables import Bools, Floats, Rows
from rltuned.decide.place.ways import CROWD, CROWDING, WaySet


@dataclass(frozen=True)
class IntegerProgram:
    """A is sparse (COO). R rows, V columns, the first P of them patterns."""

    row: Rows
    column: Rows
    value: Floats
    rhs: Floats  # (R,) b
    objective: Floats  # (V,) c
    upper: Floats  # (V,) u
    integer: Bools  # (V,)
    patterns: int


def formulate(ways: WaySet) -> IntegerProgram:
    """Build the matrices. Rows that no choice of patterns can violate are left out."""
    program = _Program(ways)
    program.start_jobs_once()
    program.limit_whole_nodes()
    program.limit_capacity()
    program.measure_crowding()
    return program.model()


class _Program:
    """Collects rows and, behind the patterns, more columns."""

    def __init__(self, ways: WaySet) -> None:
        self._ways, self._problem, self._columns = ways, ways.problem, ways.columns
        self._members = np.array([len(jobs) for jobs in ways.classes.jobs], dtype=np.float64)
        self._row, self._column = ([np.zeros(0, dtype=np.intp)] for _ in range(2))
        self._value, self._rhs = [np.zeros(0)], list[float]()
        columns = self._columns
        self._objective, self._upper = -columns.cost, self._members[columns.job_class]
        self._more: list[tuple[float, float, bool]] = []
        self._open_of = np.full(len(self._problem.free), -1, dtype=np.intp)
        """(M,) open column of each node, −1: it has none."""
        # How often a pattern fits on its own.
        if len(columns.part_pattern):
            cap = self._problem.free[columns.part_node]
            with np.errstate(divide="ignore", invalid="ignore"):
                times = np.where(columns.part_use > 0, np.floor(cap / columns.part_use + 1e-9), np.inf).min(axis=1)
            np.minimum.at(self._upper, columns.part_pattern, np.maximum(times, 0.0))

    def model(self) -> IntegerProgram:
        """What has been collected."""
        count = len(self._columns.patterns)
        return IntegerProgram(
            row=np.concatenate(self._row),
            column=np.concatenate(self._column),
            value=np.concatenate(self._value),
            rhs=np.array(self._rhs, dtype=np.float64),
            objective=np.concatenate((self._objective, [worth for worth, _, _ in self._more])),
            upper=np.concatenate((self._upper, [most for _, most, _ in self._more])),
            integer=np.array([True] * count + [whole for _, _, whole in self._more], dtype=np.bool_),
            patterns=count,
        )

    def _add_rows(
        self,
        row: Rows | int,
        column: Rows,
        value: Floats,
        rhs: Sequence[float],
    ) -> None:
        """One row per limit of `rhs`; `row` counts from 0 within the block."""
        self._row.append(np.full(len(column), len(self._rhs), dtype=np.intp) + row)
        self._column.append(column)
        self._value.append(value)
        self._rhs.extend(rhs)

    def _add_column(self, worth: float, most: float, whole: bool) -> int:
        self._more.append((worth, most, whole))
        return len(self._columns.patterns) + len(self._more) - 1

    def _most(self, cell: Rows, pattern: Rows, amount: Floats) -> Floats:
        """Upper bound of Σ amount·x in each cell (ascending, 0…), given x ≤ upper and that a class uses no more
        patterns than it has jobs.
        """
        if len(cell) == 0:
            return np.zeros(0)
        classes = len(self._members)
        key = cell * classes + self._columns.job_class[pattern]
        order = np.argsort(key, kind="stable")
        key, amount, upper = key[order], amount[order], self._upper[pattern[order]]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(key)) + 1))
        by_pattern = np.add.reduceat(amount * upper, starts)
        by_job = np.maximum.reduceat(amount, starts) * self._members[key[starts] % classes]
        return np.bincount(key[starts] // classes, np.minimum(by_pattern, by_job)).astype(np.float64)

    def start_jobs_once(self) -> None:
        """Each job at most once, and what starting it is worth.

        Equal jobs differ only in weight, so the best-ranked of them start: y[k] says that at least k+1 of them do.
        Their worth falls with k.
        """
        problem, classes, c = self._problem, self._ways.classes, self._columns.job_class
        members = self._members
        self._add_rows(c, np.arange(len(c)), np.ones(len(c)), members.tolist())
        alone = members[c] == 1
        worth = problem.weight[classes.first_job] * problem.size[classes.first_job]
        self._objective[alone] += worth[c][alone]
        for several in np.flatnonzero(members > 1).tolist():
            mine, jobs = np.flatnonzero(c == several), classes.jobs[several]
            worths = problem.weight[jobs] * problem.size[jobs[0]]
            units = [self._add_column(worth, 1.0, False) for worth in worths.tolist()]
            values = np.concatenate((np.ones(len(units)), -np.ones(len(mine))))
            self._add_rows(0, np.concatenate((units, mine)).astype(np.intp), values, [0.0])

    def limit_whole_nodes(self) -> None:
        """Σ nodes taken whole + shared nodes ≤ nodes, for each class of which both might run out."""
        columns, classes = self._columns, self._ways.classes
        named = np.unique(columns.part_node)
        for n in np.unique(columns.token_class).tolist():
            size = len(classes.nodes[n])
            mine, tokens = np.unique(columns.token_pattern[columns.token_class == n], return_counts=True)
            self._upper[mine] = np.minimum(self._upper[mine], size // tokens)
            shared = named[classes.node_of[named] == n]
            most = self._most(np.zeros(len(mine), dtype=np.intp), mine, tokens.astype(np.float64))
            if most.sum() + len(shared) <= size:
                continue
            self._open_of[shared] = [self._add_column(0.0, 1.0, True) for _ in shared]
            values = np.concatenate((tokens.astype(np.float64), np.ones(len(shared))))
            self._add_rows(0, np.concatenate((mine, self._open_of[shared])), values, [float(size)])

    def limit_capacity(self) -> None:
        """What patterns take from a node ≤ what is free there, in each dimension.

        Amounts are shares of what is free: MiB beside GPUs would be badly scaled.
        """
        columns, free = self._columns, self._problem.free
        depth = free.shape[1]
        part, dimension = np.nonzero(columns.part_use)
        if len(part) == 0:
            return
        amount = columns.part_use[part, dimension]
        pattern = columns.part_pattern[part]
        cells, row = np.unique(columns.part_node[part] * depth + dimension, return_inverse=True)
        node, dim = np.divmod(cells, depth)
        limit = free[node, dim]
        # The CPU row ties every pattern of a node to its open column: each takes at least one CPU.
        linked = self._open_of[node] >= 0
        keep = (self._most(row, pattern, amount) > limit) | (linked & (dim == depth - 3))
        # Nothing fits where nothing is free.
        self._upper[pattern[(limit <= 0)[row]]] = 0.0
        keep &= limit > 0
        index = np.cumsum(keep) - 1
        kept = keep[row]
        linked &= keep
        self._add_rows(
            np.concatenate((index[row[kept]], index[linked])),
            np.concatenate((pattern[kept], self._open_of[node[linked]])),
            np.concatenate((amount[kept] / limit[row[kept]], np.full(int(linked.sum()), -1.0))),
            np.where(linked, 0.0, 1.0)[keep].tolist(),
        )

    def measure_crowding(self) -> None:
        """Planned jobs on one node may take `CROWD` of its CPUs and of its memory; `over` is what goes beyond."""
        columns, problem = self._columns, self._problem
        share = columns.part_use[:, -3:-1] / np.maximum(problem.total[columns.part_node, -2:], 1.0)
        pattern = np.repeat(columns.part_pattern, 2)
        cells, row = np.unique(columns.part_node[:, None] * 2 + np.arange(2), return_inverse=True)
        row, amount = row.ravel(), share.ravel()
        keep = self._most(row, pattern, amount) > CROWD
        if not keep.any():
            return
        node = cells[keep] // 2
        worst, most = -CROWDING * problem.node_sizes, float(len(problem))
        over = {n: self._add_column(float(worst[n]), most, False) for n in np.unique(node).tolist()}
        index = np.cumsum(keep) - 1
        kept = keep[row] & (amount > 0)
        self._add_rows(
            np.concatenate((index[row[kept]], np.arange(len(node)))),
            np.concatenate((pattern[kept], [over[n] for n in node.tolist()])).astype(np.intp),
            np.concatenate((amount[kept], np.full(len(node), -1.0))),
            [CROWD] * len(node),
        )
