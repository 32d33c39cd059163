"""The program's way to GLPK: load, root relaxation, branch and bound, read back. Nothing is printed, nothing leaks."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import swiglpk as glpk

from rltuned.errors import PlacementError
from rltuned.placement.base import SolveOutcome
from rltuned.placement.model import Model

ROOT_SHARE: Final = 0.5
"""Share of the time limit that the root relaxation may take. glp_intopt's own presolve solves it without any limit
(checked in GLPK's source), so the relaxation is solved here first and presolve stays off."""
GUARD: Final = 0.8
"""Share of the limit handed to GLPK: it looks at its clock between nodes, not within one (docs/placement.md)."""


@dataclass(frozen=True)
class Solved:
    """What GLPK answered."""

    outcome: SolveOutcome
    counts: npt.NDArray[np.int64] | None
    """(P,) how often each pattern is used; None without a solution."""
    objective: float
    bound: float
    message: str = ""


def _check(model: Model) -> None:
    # GLPK ends the process on wrong data (its manual, "Error handling"): nothing wrong may reach it.
    rows, columns = len(model.rhs), len(model.objective)
    if len(model.row) and (model.row.max() >= rows or model.column.max() >= columns or model.row.min() < 0 or model.column.min() < 0):
        raise PlacementError("placement model: an index lies outside the matrix")
    for part in (model.value, model.rhs, model.objective, model.upper):
        if not np.all(np.isfinite(part)):
            raise PlacementError("placement model: a coefficient is not finite")
    if np.any(model.upper < 0):
        raise PlacementError("placement model: an upper bound is negative")
    if len(np.unique(model.row * columns + model.column)) != len(model.row):
        raise PlacementError("placement model: two coefficients share a cell")


def solve(model: Model, time_limit: float, gap: float) -> Solved:
    """Solve `model` with GLPK within `time_limit` seconds, to relative gap `gap`.

    OPTIMAL: proven within the gap. FEASIBLE: the limit came first, the incumbent counts. TIMEOUT: no incumbent.
    Deterministic unless the limit strikes.

    Raises:
        PlacementError: the model has indices or coefficients that would make GLPK end the process.
    """
    _check(model)
    glpk.glp_term_out(glpk.GLP_OFF)
    lp = glpk.glp_create_prob()
    try:
        _load(lp, model)
        return _run(lp, model, max(int(time_limit * GUARD * 1000), 1), gap)
    finally:
        glpk.glp_delete_prob(lp)


def _load(lp: Any, model: Model) -> None:
    glpk.glp_set_obj_dir(lp, glpk.GLP_MAX)
    rows, columns = len(model.rhs), len(model.objective)
    if rows:
        glpk.glp_add_rows(lp, rows)
        for i, limit in enumerate(model.rhs.tolist(), start=1):
            glpk.glp_set_row_bnds(lp, i, glpk.GLP_UP, 0.0, limit)
    glpk.glp_add_cols(lp, columns)
    for j, (worth, most, whole) in enumerate(
        zip(model.objective.tolist(), model.upper.tolist(), model.integer.tolist(), strict=True), start=1
    ):
        if most > 0:
            glpk.glp_set_col_bnds(lp, j, glpk.GLP_DB, 0.0, most)
        else:
            glpk.glp_set_col_bnds(lp, j, glpk.GLP_FX, 0.0, 0.0)
        glpk.glp_set_obj_coef(lp, j, worth)
        if whole:
            glpk.glp_set_col_kind(lp, j, glpk.GLP_IV)
    if len(model.value):
        rows_, columns_, values = glpk.intArray(len(model.value) + 1), glpk.intArray(len(model.value) + 1), glpk.doubleArray(len(model.value) + 1)
        for at, (i, j, value) in enumerate(zip((model.row + 1).tolist(), (model.column + 1).tolist(), model.value.tolist(), strict=True), start=1):
            rows_[at] = i
            columns_[at] = j
            values[at] = value
        glpk.glp_load_matrix(lp, len(model.value), rows_, columns_, values)


def _run(lp: Any, model: Model, limit_ms: int, gap: float) -> Solved:
    simplex = glpk.glp_smcp()
    glpk.glp_init_smcp(simplex)
    simplex.msg_lev = glpk.GLP_MSG_OFF
    simplex.tm_lim = max(int(limit_ms * ROOT_SHARE), 1)
    code = glpk.glp_simplex(lp, simplex)
    if code == glpk.GLP_ETMLIM:
        return Solved(SolveOutcome.TIMEOUT, None, -math.inf, math.inf, "time limit in the root relaxation")
    if code != 0 or glpk.glp_get_status(lp) != glpk.GLP_OPT:
        return Solved(SolveOutcome.ERROR, None, -math.inf, math.inf, f"GLPK simplex: code {code}, status {glpk.glp_get_status(lp)}")
    relaxed = float(glpk.glp_get_obj_val(lp))
    branch = glpk.glp_iocp()
    glpk.glp_init_iocp(branch)
    branch.msg_lev = glpk.GLP_MSG_OFF
    branch.presolve = glpk.GLP_OFF
    branch.mip_gap = gap
    branch.tm_lim = max(int(limit_ms * (1.0 - ROOT_SHARE)), 1)
    code = glpk.glp_intopt(lp, branch)
    status = glpk.glp_mip_status(lp)
    if status not in {glpk.GLP_OPT, glpk.GLP_FEAS}:
        if code == glpk.GLP_ETMLIM:
            return Solved(SolveOutcome.TIMEOUT, None, -math.inf, relaxed, "time limit before a first solution")
        return Solved(SolveOutcome.ERROR, None, -math.inf, relaxed, f"GLPK intopt: code {code}, status {status}")
    objective = float(glpk.glp_mip_obj_val(lp))
    counts = np.array([glpk.glp_mip_col_val(lp, j + 1) for j in range(model.patterns)])
    found = np.rint(counts).astype(np.int64)
    if code == 0:
        return Solved(SolveOutcome.OPTIMAL, found, objective, objective)
    if code == glpk.GLP_EMIPGAP:
        return Solved(SolveOutcome.OPTIMAL, found, objective, min(relaxed, objective + gap * abs(objective)))
    if code == glpk.GLP_ETMLIM:
        return Solved(SolveOutcome.FEASIBLE, found, objective, relaxed, "time limit; best solution so far")
    return Solved(SolveOutcome.ERROR, None, -math.inf, relaxed, f"GLPK intopt: code {code}")
