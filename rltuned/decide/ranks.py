"""The order of one class: the policy's, bent by the guards; and the priorities that make it."""

import enum
import heapq
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Bools, Ints

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


# --- priorities that make an order ------------------------------------------------------------------------------------


def hand_out(order: Order, base: Ints, tie: Ints, old: Bools) -> Ints:
    """Target priority of each member: the sorted base priorities, in the given order.

    Same multiset, other order. Where two neighbours get the same value and Slurm's tie-break (lower `tie` first) would
    turn them round, the later one is lowered by one, and those after it as far as needed: targets are never raised, so
    no job outside the class is overtaken. At Slurm's floor of 1 there is nothing to lower; ties there stay ties.

    An `old` job is not lowered below its base, even if it comes before one that is wanted ahead of it. `order` has it
    no further back than its base rank (`age_bound`), so before the lowering it had at least its base, too.
    """
    values = np.sort(base)[::-1]
    ties = tie[order]
    swapped = np.zeros(len(order), dtype=np.int64)
    swapped[1:] = ties[1:] < ties[:-1]
    # With S the sum of `swapped` so far: t[i] = min(values[i], t[i-1] - swapped[i]) is the same as
    # t[i] + S[i] = the least values[j] + S[j] of all j ≤ i.
    steps = np.cumsum(swapped)
    lowered = np.minimum.accumulate(values + steps) - steps
    targets = np.empty(len(order), dtype=np.int64)
    targets[order] = np.maximum(lowered, np.minimum(values, 1))
    return np.where(old, np.maximum(targets, base), targets)


def with_hysteresis(order: Order, target: Ints, current: Ints, tie: Ints, free: Bools, tolerance: int) -> Ints:
    """Targets after hysteresis: a `free` job keeps the value that it has while that drifts by at most `tolerance`.

    Only as long as the class's order stays the planned one: wherever keeping a value would break it, that job and its
    neighbours get their targets.
    """
    keep = free & (np.abs(target - current) <= tolerance)
    if not keep.any():
        return target
    ties = tie[order]
    kept = keep[order]
    in_order = target[order]
    held = current[order]
    value = np.where(kept, held, in_order)
    wrong = (value[:-1] < value[1:]) | ((value[:-1] == value[1:]) & (ties[:-1] > ties[1:]))
    # A tie that even the exact targets have (Slurm's floor) is not the hysteresis' doing.
    wrong &= kept[:-1] | kept[1:]
    if wrong.any():
        suspects = np.flatnonzero(wrong).tolist()
        value = _corrected(value.tolist(), in_order.tolist(), ties.tolist(), kept.tolist(), suspects)
    result = np.empty(len(order), dtype=np.int64)
    result[order] = value
    return result


def _corrected(value: list[int], exact: list[int], ids: list[int], kept: list[bool], suspects: Iterable[int]) -> Ints:
    """The values with `exact` ones where neighbours would change places; `suspects`: the first of each two that may."""
    while suspects:
        wrong = [
            at
            for at in suspects
            if (kept[at] or kept[at + 1])
            and (value[at] < value[at + 1] or (value[at] == value[at + 1] and ids[at] > ids[at + 1]))
        ]
        changed = {near for at in wrong for near in (at, at + 1) if kept[near]}
        for at in changed:
            kept[at], value[at] = False, exact[at]
        suspects = {near for at in changed for near in (at - 1, at) if 0 <= near < len(value) - 1}
    return np.array(value, dtype=np.int64)
