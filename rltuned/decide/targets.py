"""Handing a class's own priorities out in another order, with as few changes as possible."""

from collections.abc import Iterable

import numpy as np

from rltuned.cluster.tables import Bools, Ints
from rltuned.decide.ranks import Order


def hand_out(order: Order, base: Ints, tie: Ints, old: Bools) -> Ints:
    """Target priority of each member: the sorted base priorities, in the given order.

    Same multiset, other order. Where two neighbours get the same value and Slurm's tie-break (lower `tie` first) would
    turn them round, the later one is lowered by one, and those after it as far as needed: targets are never raised, so
    no job outside the class is overtaken. At Slurm's floor of 1 there is nothing to lower; ties there stay ties.

    An `old` job is not lowered below its base, even if it comes before one that is wanted ahead of it. `order` has it
    no further back than its base rank (`ranks.age_bound`), so before the lowering it had at least its base, too.
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
