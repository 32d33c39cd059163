"""The order of one class: the policy's, mixed with Slurm's, bent by the guards."""

import enum
import heapq

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Bools, Floats, Ints

Order = npt.NDArray[np.intp]
"""A permutation of the class's members, front of the queue first."""


class Guard(enum.IntFlag):
    """Guards that bent a job's rank."""

    NONE = 0
    AGE_BOUND = 1
    """Waited longer than the bound: not moved back."""
    BUDGET = 2
    """Its account has used up what it may borrow."""
    OUTSIDE_WINDOW = 8
    """Too far back for the policy to see: keeps Slurm's order."""
    OUTSIDE = 16
    """Kept behind a job outside of its class."""


def slurm_order(priority: Ints, tie: Ints) -> Order:
    """Slurm's own order within a partition tier: higher priority first, then the lower `Outside.tie`."""
    return np.lexsort((tie, -priority))


def ranks_of(order: Order) -> Order:
    """Rank of each member; inverse of the permutation."""
    ranks = np.empty(len(order), dtype=np.intp)
    ranks[order] = np.arange(len(order))
    return ranks


def policy_order(score: Floats, base_rank: Order, authority: float) -> Order:
    """Order of the visible jobs: a·(rank by score) + (1 − a)·(rank by Slurm); ties as Slurm has them."""
    by_score = ranks_of(np.lexsort((base_rank, -score)))
    by_slurm = ranks_of(np.argsort(base_rank, kind="stable"))
    return np.lexsort((base_rank, authority * by_score + (1.0 - authority) * by_slurm))


def defer(order: Order, movable: Bools, earliest: Order) -> Order:
    """The order in which no movable member stands before its `earliest` place; the others keep theirs.

    Each place of the movable ones, from the first to the last, gets the most wanted of those that may stand there; if
    there is none, the one that soonest may.
    """
    places = np.flatnonzero(movable[order])
    wanted = order[places]
    if (earliest[wanted] <= places).all():
        return order
    coming = [(int(earliest[member]), rank) for rank, member in enumerate(wanted)]
    coming.sort(reverse=True)
    ready: list[int] = []
    result = order.copy()
    for place in places:
        while coming and (coming[-1][0] <= place or not ready):
            heapq.heappush(ready, coming.pop()[1])
        result[place] = wanted[heapq.heappop(ready)]
    return result


def age_bound(order: Order, base_rank: Order, old: Bools) -> Order:
    """The order nearest to `order`, from its back, in which no `old` job stands behind its base rank.

    Fills the places from the last to the first, each with the least wanted job that may stand there (Lawler's backward
    rule for deadlines). Slurm's own order is always feasible. O(n log n), and O(n) when nothing is violated.
    """
    wanted = ranks_of(order)
    if not (old & (wanted > base_rank)).any():
        return order
    n = len(order)
    result = np.empty(n, dtype=np.intp)
    deadline = np.where(old, base_rank, n - 1)
    by_deadline = np.argsort(-deadline, kind="stable")
    heap: list[tuple[int, int]] = []
    taken = 0
    for place in range(n - 1, -1, -1):
        while taken < n and deadline[by_deadline[taken]] >= place:
            member = int(by_deadline[taken])
            heapq.heappush(heap, (-int(wanted[member]), member))
            taken += 1
        result[place] = heapq.heappop(heap)[1]
    return result
