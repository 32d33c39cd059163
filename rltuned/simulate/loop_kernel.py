"""The compiled event loop: slurmctld's main pass, EASY backfill, and time (docs/simulator.md).

`advance` moves a `kernel.State`. Backfill as Slurm's own is `backfill_kernel`.
"""

# Numba compiles loops over arrays best: the linter's rules for iterators do not apply here.
# ruff: noqa: C901

from typing import Any, Final

import numpy as np

from rltuned.simulate import backfill_kernel, kernel
from rltuned.simulate.backfill_kernel import keep_off_plans, plan
from rltuned.simulate.kernel import (
    BACKFILL_DUE,
    BEYOND,
    DIMENSIONS,
    EASY_BACKFILL,
    HEAP,
    HOLDING,
    LAST_REFRESH,
    LATER_FREE,
    LISTED,
    MAIN_DUE,
    NEXT,
    NO_BACKFILL,
    NOW,
    NOW_FREE,
    PASSES,
    PER_NODE,
    PROMISED,
    QUEUED,
    REFRESH_DUE,
    REFRESHES,
    REFRESHING,
    ROOM,
    SHARED,
    SLURM_BACKFILL,
    UNRANKED,
    Index,
    Ranking,
    Setup,
    State,
    begin,
    choose,
    entry_point,
    finish,
    give_back,
    may_fit,
    next_multiple,
    pop_end,
    rank_fixed,
    something_changed,
    source_stamp,
    submit,
    uncached,
    unit_of,
)

DONE: Final = 0
REFRESH: Final = 1
"""What `advance` returns."""


@uncached
def reserve(s: State, job: int, nodes: int, time: float) -> None:
    """EASY: from `time` on the chosen nodes owe the job what it needs; the rest may be held longer."""
    for k in range(nodes):
        node = s.nodes[k].pick_node
        for d in range(DIMENSIONS):
            left = s.amount[LATER_FREE, node, d] - s.pick[k, d]
            if s.jobs[job].alone != SHARED:  # the whole node; nobody else was promised any of it
                left = 0
                s.amount[PROMISED, node, d] = s.amount[ROOM, node, d]
            elif s.nodes[node].shadow < np.inf:
                left = min(left, s.amount[BEYOND, node, d] - s.pick[k, d])
                s.amount[PROMISED, node, d] += s.pick[k, d]
            else:
                s.amount[PROMISED, node, d] = s.pick[k, d]
            s.amount[BEYOND, node, d] = left
        s.nodes[node].shadow = min(s.nodes[node].shadow, time)


@uncached
def start_over(s: State, job: int) -> int:
    """Set the resources from which `expected` goes on to what is free now. Returns the units that the pool has free."""
    unit = unit_of(s, job)
    for node in range(len(s.nodes)):
        s.jobs_on[LATER_FREE, node] = s.jobs_on[NOW_FREE, node]
        s.closed[LATER_FREE, node] = s.closed[NOW_FREE, node]
        # What another partition's head was promised stays promised.
        promised = s.nodes[node].shadow < np.inf
        s.nodes[node].kept = promised and s.jobs[job].alone != SHARED
        for d in range(DIMENSIONS):
            free = s.amount[NOW_FREE, node, d]
            s.amount[LATER_FREE, node, d] = free - s.amount[PROMISED, node, d] if promised else free
    have = 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        have += s.amount[NOW_FREE, s.pool_nodes[at], unit]
    return have


@uncached
def expected(s: State, c: Setup, job: int) -> tuple[float, int]:
    """EASY: when the job fits if running jobs go on to their limits, and on how many nodes (in `pick_node`); 0: never.

    It goes from limit to limit, as soon as the pool has the units at all.
    """
    unit = unit_of(s, job)
    wanted = s.need[job, unit] * (s.jobs[job].least if s.jobs[job].form == PER_NODE else 1)
    have = start_over(s, job)
    n, at = s.counts[HOLDING], 0
    while at < n and s.jobs[s.holding[at]].ends_by < np.inf:
        time = s.jobs[s.holding[at]].ends_by
        while at < n and s.jobs[s.holding[at]].ends_by == time:
            other = s.holding[at]
            at += 1
            give_back(s, other, LATER_FREE)
            for k in range(s.jobs[other].slot, s.jobs[other].slot + s.jobs[other].on):
                have += s.given[k, unit]
        if have >= wanted:
            nodes = choose(s, job, LATER_FREE, -np.inf, c.fit)
            if nodes > 0:
                return time, nodes
    return np.inf, 0


@uncached
def look_ahead(s: State, c: Setup, job: int) -> None:
    """EASY: reserve what a head needs of its nodes, where it is expected to start first."""
    time, nodes = expected(s, c, job)
    if nodes > 0:
        reserve(s, job, nodes, time)
        s.known[:] = False
    for node in range(len(s.nodes)):
        s.nodes[node].kept = False


@uncached
def queue_pass(s: State, c: Setup, mode: Index) -> None:
    """Go through the queue once.

    Main pass (`NO_BACKFILL`): the first job of a partition that does not fit blocks the partition and its nodes.
    EASY: that job gets the one reservation of its partition.
    sched/backfill: each job that is looked at and cannot start plans its nodes.
    """
    s.counts[PASSES] += 1
    now = s.clock[NOW]
    main = mode == NO_BACKFILL
    partitions = len(s.part_ptr) - 1
    open_partitions = partitions
    s.blocked[:] = False
    s.known[:] = False
    s.plans.planned[:] = 0
    s.counts[LISTED] = -1
    for node in range(len(s.nodes)):
        s.nodes[node].shadow = np.inf
        s.nodes[node].plans = 0
    n, at, stay = s.counts[QUEUED], 0, 0
    while at < n:
        if (main and open_partitions == 0) or (mode == SLURM_BACKFILL and at >= c.bf_max_job_test):
            break
        job = s.queue[at]
        at += 1
        p = s.jobs[job].partition
        until = now + s.jobs[job].limit
        looked = not s.blocked[p] if main else may_fit(s, job, until)
        nodes = 0
        if looked:
            if mode == SLURM_BACKFILL:
                looked = keep_off_plans(s, job)
            if looked:
                nodes = choose(s, job, NOW_FREE, until, c.fit)
        if nodes > 0:
            for k in range(nodes):
                node = s.nodes[k].pick_node
                if until > s.nodes[node].shadow:
                    for d in range(DIMENSIONS):
                        s.amount[BEYOND, node, d] -= s.pick[k, d]
            s.counts[UNRANKED] -= s.jobs[job].key == np.inf
            begin(s, c, job, nodes, s.blocked[p])
            s.known[:] = False
            s.counts[LISTED] = -1
            continue
        s.queue[stay] = job
        stay += 1
        if main and looked:
            open_partitions -= 1
            if partitions > 1:
                for k in range(s.part_ptr[p], s.part_ptr[p + 1]):
                    s.nodes[s.part_nodes[k]].kept = True
        elif mode == SLURM_BACKFILL:
            plan(s, c, job)
        elif mode == EASY_BACKFILL and not s.blocked[p]:
            look_ahead(s, c, job)
        s.blocked[p] = True
    if stay < at:
        while at < n:
            s.queue[stay] = s.queue[at]
            stay += 1
            at += 1
        s.counts[QUEUED] = stay
    for node in range(len(s.nodes)):
        s.nodes[node].shadow = np.inf
        s.nodes[node].kept = False


def _advance_for(stamp: int) -> Any:
    """`advance` for one source text of the other two files: Numba's cache looks at one file for each function, but what
    a function closes over is part of the key.
    """

    @entry_point
    def advance(s: State, c: Setup, ranking: Ranking, until: float) -> int:
        """Move to the time `until` (seconds), events at it included, or to the end of all work.

        Returns:
            `DONE`; or `REFRESH`: the caller is to rank the queue now, and then to call again.
        """
        jobs = len(s.jobs)
        while stamp >= 0:  # always
            if s.counts[REFRESHING] == 0:
                time = min(s.clock[MAIN_DUE], s.clock[BACKFILL_DUE], s.clock[REFRESH_DUE])
                if s.counts[HEAP] > 0:
                    time = min(time, s.heap[0].time)
                if s.counts[NEXT] < jobs:
                    time = min(time, s.jobs[s.counts[NEXT]].submit)
                if time > until or time == np.inf:
                    if until < np.inf:
                        s.clock[NOW] = max(until, s.clock[NOW])
                    return DONE
                now = max(time, s.clock[NOW])
                s.clock[NOW] = now
                ended = False
                while s.counts[HEAP] > 0 and s.heap[0].time <= now:
                    finish(s, c, pop_end(s))
                    ended = True
                submitted = submit(s)
                if ended or submitted:
                    something_changed(s, c)
                    if not ranking.fixed or s.counts[UNRANKED] > 0:
                        due = now if submitted and ranking.at_once else next_multiple(now, c.refresh)
                        s.clock[REFRESH_DUE] = min(s.clock[REFRESH_DUE], due)
                if s.clock[REFRESH_DUE] <= now:
                    s.clock[REFRESH_DUE] = np.inf
                    if s.counts[QUEUED] > 0:
                        s.counts[REFRESHES] += 1
                        s.clock[LAST_REFRESH] = now
                        if not ranking.fixed:
                            s.counts[REFRESHING] = 1
                            return REFRESH
                        if rank_fixed(s):
                            something_changed(s, c)
            s.counts[REFRESHING] = 0
            now = s.clock[NOW]
            for due in (MAIN_DUE, BACKFILL_DUE):
                if s.clock[due] <= now:
                    s.clock[due] = np.inf
                    mode = NO_BACKFILL if due == MAIN_DUE else c.backfill
                    if s.counts[QUEUED] > 0 and (due == MAIN_DUE or mode != NO_BACKFILL):
                        queue_pass(s, c, mode)
            if s.counts[QUEUED] == 0:
                s.clock[MAIN_DUE] = np.inf
                s.clock[BACKFILL_DUE] = np.inf
                s.clock[REFRESH_DUE] = np.inf
            elif ranking.ages and s.clock[REFRESH_DUE] == np.inf and (s.counts[HEAP] > 0 or s.counts[NEXT] < jobs):
                # Where nothing runs and nothing is to come, a job cannot start until somebody changes something.
                s.clock[REFRESH_DUE] = next_multiple(max(s.clock[LAST_REFRESH] + c.stale, now), c.refresh)
        return DONE

    return advance


advance: Final = _advance_for(source_stamp(kernel, backfill_kernel))
