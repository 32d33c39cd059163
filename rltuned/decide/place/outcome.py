"""What is said of a placement where none is made, too: in records and metrics."""

import enum


class PlacementKind(enum.StrEnum):
    """Kinds of placement (paper Algorithm 1)."""

    PACK = "pack"  # by best fit, next to others
    SPREAD = "spread"  # on idle nodes, which nobody else may join


class SolveOutcome(enum.StrEnum):
    """How the solver ended. Where it found no solution, or none better, the greedy one counts."""

    OPTIMAL = "optimal"  # within the configured gap
    FEASIBLE = "feasible"  # time limit; the best solution so far
    TIMEOUT = "timeout"  # time limit without a solution
    INFEASIBLE = "infeasible"  # no job can start now
    ERROR = "error"  # the solver failed (numerically)
