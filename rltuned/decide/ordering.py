"""The order of all classes: the policy's, mixed with Slurm's, bent by the guards, and the priorities that make it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rltuned.cluster.borrowed import Loan
from rltuned.cluster.tables import Bools, Floats, Ints
from rltuned.config import DecideSection
from rltuned.decide.borrowing import Purse
from rltuned.decide.managed import ManagedJobs
from rltuned.decide.outside import Border, Rows
from rltuned.decide.ranks import (
    Guard,
    Order,
    age_bound,
    defer,
    hand_out,
    ranks_of,
    slurm_order,
    with_hysteresis,
)


@dataclass(frozen=True)
class Ordered:
    """Ranks and targets of n managed jobs."""

    base_rank: Order
    """(n,) rank within its class by Slurm alone, 0 first."""
    rank: Order
    """(n,) planned rank within its class."""
    target: Ints
    """(n,) priority that the job shall have."""
    guards: npt.NDArray[np.int8]
    held_behind: Ints
    """(n,) id of the job outside of its class that each was kept behind, 0 where there is none."""
    raised: dict[int, Loan]
    """By id, the jobs that stand ahead of another account's job which Slurm alone has before them."""


def order_classes(managed: ManagedJobs, window: Rows, scores: Floats, settings: DecideSection, purse: Purse) -> Ordered:
    """Ranks and targets, class by class: the policy's, bent by budget, age bound, the jobs outside of the class.

    Args:
        managed: n managed jobs.
        window: (w,) positions of those that the policy saw.
        scores: (w,) higher first.
        settings: of the guards.
        purse: what the accounts may still borrow; what the order borrows is taken out.
    """
    n, outside, jobs = len(managed.rows), managed.outside, managed.snapshot.jobs
    score = np.zeros(n)
    score[window] = scores
    visible = np.zeros(n, dtype=np.bool_)
    visible[window] = True
    old = (managed.snapshot.time - jobs.eligible_time[managed.rows]) > settings.age_bound
    ours = np.zeros(n, dtype=np.bool_)
    ours[[at for at, record in managed.applied.on(jobs, managed.rows) if record.site_factor != 0]] = True
    rank, base_rank = np.zeros(n, dtype=np.intp), np.zeros(n, dtype=np.intp)
    target, held_behind = managed.base.copy(), np.zeros(n, dtype=np.int64)
    guards = np.where(visible, 0, Guard.OUTSIDE_WINDOW).astype(np.int8)
    raised: dict[int, Loan] = {}
    for members, tier in zip(managed.classes.members, managed.classes.tiers, strict=True):
        tie, base, current = outside.tie[managed.at[members]], managed.base[members], managed.current[members]
        by_slurm = ranks_of(slurm_order(base, tie))
        seen = np.flatnonzero(visible[members])
        wanted = seen[np.lexsort((by_slurm[seen], -score[members][seen]))]
        border = outside.border(managed.at[members], tier)
        place = _Class(border, base, tie, by_slurm, old[members], visible[members])
        for preferred in purse.orders(members, wanted, by_slurm):
            free_order = slurm_order(base, tie)
            free_order[visible[members][free_order]] = preferred
            bound = age_bound(free_order, by_slurm, old[members])
            exact, order, behind = place.hold_back(bound)
            loans = purse.pay(members, visible[members], exact > base, ranks_of(order), by_slurm)
            if loans is not None:
                break
        raised |= loans or {}
        payable = ranks_of(free_order)
        guards[members[wanted[np.argsort(np.argsort(payable[wanted])) > np.arange(len(wanted))]]] |= Guard.BUDGET
        guards[members[old[members] & (ranks_of(bound) < ranks_of(free_order))]] |= Guard.AGE_BOUND
        guards[members[behind >= 0]] |= Guard.OUTSIDE
        held_behind[members] = np.where(behind >= 0, jobs.job_id[managed.scope.rows[behind]], 0)
        tolerance = int(settings.hysteresis * (base.max() - base.min()))
        free = ours[members] & place.may_keep(current, exact)
        target[members] = with_hysteresis(order, exact, current, tie, free, tolerance)
        rank[members], base_rank[members] = ranks_of(order), by_slurm
    return Ordered(base_rank, rank, target, guards, held_behind, raised)


@dataclass(frozen=True)
class _Class:
    """From the order of one class of n jobs to targets that no outside job has to pay for."""

    border: Border
    base: Ints
    tie: Order
    base_rank: Order
    old: Bools
    """Waited longer than the age bound."""
    movable: Bools

    def hold_back(self, wanted: Order) -> tuple[Ints, Order, Rows]:
        """Exact targets, the order that they make, and the outside job that each member was put behind (−1: none)."""
        targets, behind, late = self._held(wanted)
        order = wanted
        if late.any():
            # Others move up into the places that they free, and may pass an outside job in turn: only held back now.
            earliest = np.zeros(len(wanted), dtype=np.intp)
            earliest[late] = np.searchsorted(-np.sort(self.base)[::-1], -targets[late])
            order = age_bound(defer(wanted, self.movable | late, earliest), self.base_rank, self.old)
            targets, again, later = self._held(order)
            behind = np.where(later, again, np.where(ranks_of(order) > ranks_of(wanted), behind, -1))
        return targets, slurm_order(targets, self.tie), behind

    def _held(self, order: Order) -> tuple[Ints, Rows, Bools]:
        """Targets in this order, behind whom each member was put for that, and who was."""
        exact = hand_out(order, self.base, self.tie, self.old)
        held, behind = self.border.hold_back(exact, order, self.old)
        return held, behind, held < exact

    def may_keep(self, current: Ints, target: Ints) -> Bools:
        """(n,) whether each may keep its priority: at no outside job's cost, and not below an old job's base."""
        higher = np.flatnonzero(current > target)
        keep = ~self.old | (current >= self.base)
        keep[higher] &= ~self.border.crossed(target, current, higher)
        return np.asarray(keep, dtype=np.bool_)
