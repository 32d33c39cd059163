"""The program's way to GLPK: load, root relaxation, branch and bound, read back. Nothing is printed, nothing leaks."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import swiglpk as glpk

from rltuned.core.errors import PlacementError
from rltuned.core.tables import Ints
from rltuned.decide.place.integer_program import IntegerProgram
from rltuned.decide.place.outcome import SolveOutcome

GUARD: Final = 0.15
"""Share of the limit kept back: GLPK looks at its clock between nodes of the tree and rounds of cuts, not within."""
ROOT_SHARE: Final = 0.75
"""Share of what is left that the root relaxation may take: the search tree comes after."""
LEAST_MS: Final = 2  # time below which a search tree is not begun


@dataclass(frozen=True)
class Solved:
    """What GLPK answered; `counts` (P,) says how often each pattern is used."""

    outcome: SolveOutcome
    counts: Ints | None = None
    objective: float = -math.inf


def _check(model: IntegerProgram) -> None:
    # GLPK ends the process on wrong data (its manual, "Error handling"): nothing wrong may reach it.
    rows, columns = len(model.rhs), len(model.objective)
    if len(model.row) and (
        model.row.max() >= rows or model.column.max() >= columns or model.row.min() < 0 or model.column.min() < 0
    ):
        raise PlacementError("placement model: an index lies outside the matrix")
    for part in (model.value, model.rhs, model.objective, model.upper):
        if not np.all(np.isfinite(part)):
            raise PlacementError("placement model: a coefficient is not finite")
    if np.any(model.upper < 0):
        raise PlacementError("placement model: an upper bound is negative")
    if len(np.unique(model.row * columns + model.column)) != len(model.row):
        raise PlacementError("placement model: two coefficients share a cell")


def solve(model: IntegerProgram, time_limit: float, gap: float, known: float = -math.inf) -> Solved:
    """Solve `model` with GLPK within `time_limit` seconds, to relative gap `gap`. Where a solution that is `known` (its
    objective) is within the gap of the root relaxation, none is searched for: OPTIMAL without counts.

    OPTIMAL: proven within the gap. FEASIBLE: the limit came first. TIMEOUT: so it did, and nothing was found.
    Deterministic unless the limit strikes. PlacementError: the model would make GLPK end the process.
    """
    _check(model)
    glpk.glp_term_out(glpk.GLP_OFF)
    # GLPK's own clock, which its limits are measured on; it decides when to stop and nothing else.
    began = glpk.glp_time()

    def left() -> int:
        spent = glpk.glp_difftime(glpk.glp_time(), began)
        return int((time_limit * (1.0 - GUARD) - spent) * 1000)

    lp = glpk.glp_create_prob()
    try:
        _load(lp, model)
        return _run(lp, model, left, gap, known)
    finally:
        glpk.glp_delete_prob(lp)


def _load(lp: Any, model: IntegerProgram) -> None:
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
        glpk.glp_load_matrix(
            lp,
            len(model.value),
            _array(glpk.intArray, model.row + 1, np.dtype(np.intc)),
            _array(glpk.intArray, model.column + 1, np.dtype(np.intc)),
            _array(glpk.doubleArray, model.value, np.dtype(np.double)),
        )


def _array(kind: Any, values: npt.NDArray[Any], dtype: np.dtype[Any]) -> Any:
    """A SWIG array with `values` from element 1 on, filled in one go: element by element costs more than solving."""
    array = kind(len(values) + 1)
    source = np.concatenate(([0], values)).astype(dtype)
    ctypes.memmove(int(array.cast()), source.ctypes.data, source.nbytes)
    return array


def _run(lp: Any, model: IntegerProgram, left: Callable[[], int], gap: float, known: float) -> Solved:
    simplex = glpk.glp_smcp()
    glpk.glp_init_smcp(simplex)
    simplex.msg_lev = glpk.GLP_MSG_OFF
    # glp_intopt's own presolve would solve the relaxation without any limit (so in its source): it is solved here.
    simplex.tm_lim = max(int(left() * ROOT_SHARE), 1)
    code = glpk.glp_simplex(lp, simplex)
    if code == glpk.GLP_ETMLIM:
        return Solved(SolveOutcome.TIMEOUT)
    if code != 0 or glpk.glp_get_status(lp) != glpk.GLP_OPT:
        return Solved(SolveOutcome.ERROR)
    if known > -math.inf and float(glpk.glp_get_obj_val(lp)) - known <= gap * abs(known):
        return Solved(SolveOutcome.OPTIMAL)
    limit = left()
    if limit < LEAST_MS:
        return Solved(SolveOutcome.TIMEOUT)
    branch = glpk.glp_iocp()
    glpk.glp_init_iocp(branch)
    branch.msg_lev = glpk.GLP_MSG_OFF
    branch.presolve = glpk.GLP_OFF
    branch.mip_gap = gap
    # Mixed-integer rounding cuts close most of the gap at the root (nodes taken whole in pairs leave halves in the
    # relaxation), depth first finds incumbents soon. Other cuts, presolve and branching rules measured worse.
    branch.mir_cuts = glpk.GLP_ON
    branch.bt_tech = glpk.GLP_BT_DFS
    branch.tm_lim = limit
    code = glpk.glp_intopt(lp, branch)
    if glpk.glp_mip_status(lp) not in {glpk.GLP_OPT, glpk.GLP_FEAS}:
        return Solved(SolveOutcome.TIMEOUT if code == glpk.GLP_ETMLIM else SolveOutcome.ERROR)
    outcomes = {0: SolveOutcome.OPTIMAL, glpk.GLP_EMIPGAP: SolveOutcome.OPTIMAL, glpk.GLP_ETMLIM: SolveOutcome.FEASIBLE}
    found = np.rint([glpk.glp_mip_col_val(lp, j + 1) for j in range(model.patterns)]).astype(np.int64)
    return Solved(outcomes.get(code, SolveOutcome.ERROR), found, float(glpk.glp_mip_obj_val(lp)))
