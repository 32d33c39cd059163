"""The compiled event loop: slurmctld's main pass, EASY backfill, and time (docs/simulator.md).

`advance` moves a `kernel.State`. Backfill as Slurm's own is `backfill_kernel`.
"""

# Numba compiles loops over arrays best: the linter's rules for iterators do not apply here.
# ruff: noqa: C901

from typing import Any, Final

import numpy as np

from rltuned.simulate import backfill_kernel
from rltuned.simulate import kernel as k
from rltuned.simulate.backfill_kernel import end_of_plans, keep_off_plans, plan

DONE: Final = 0
REFRESH: Final = 1
"""What `advance` returns."""


@k.uncached
def reserve(s: k.State, job: int, nodes: int, time: float) -> None:
    """EASY: from `time` on the chosen nodes owe the job what it needs; the rest may be held longer."""
    for place in range(nodes):
        node = s.nodes[place].pick_node
        for d in range(k.DIMENSIONS):
            left = s.amount[k.LATER_FREE, node, d] - s.pick[place, d]
            if s.jobs[job].alone != k.SHARED:  # the whole node; nobody else was promised any of it
                left = 0
                s.amount[k.PROMISED, node, d] = s.amount[k.ROOM, node, d]
            elif s.nodes[node].shadow < np.inf:
                left = min(left, s.amount[k.BEYOND, node, d] - s.pick[place, d])
                s.amount[k.PROMISED, node, d] += s.pick[place, d]
            else:
                s.amount[k.PROMISED, node, d] = s.pick[place, d]
            s.amount[k.BEYOND, node, d] = left
        s.nodes[node].shadow = min(s.nodes[node].shadow, time)


@k.uncached
def start_over(s: k.State, job: int) -> int:
    """Set the resources from which `expected` goes on to what is free now. Returns the units that the pool has free."""
    unit = k.unit_of(s, job)
    for node in range(len(s.nodes)):
        s.jobs_on[k.LATER_FREE, node] = s.jobs_on[k.NOW_FREE, node]
        s.closed[k.LATER_FREE, node] = s.closed[k.NOW_FREE, node]
        # What another partition's head was promised stays promised.
        promised = s.nodes[node].shadow < np.inf
        s.nodes[node].kept = promised and s.jobs[job].alone != k.SHARED
        for d in range(k.DIMENSIONS):
            free = s.amount[k.NOW_FREE, node, d]
            s.amount[k.LATER_FREE, node, d] = free - s.amount[k.PROMISED, node, d] if promised else free
    have = 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        have += s.amount[k.NOW_FREE, s.pool_nodes[at], unit]
    return have


@k.uncached
def expected(s: k.State, c: k.Setup, job: int) -> tuple[float, int]:
    """EASY: when the job fits if running jobs go on to their limits, and on how many nodes (in `pick_node`); 0: never.

    It goes from limit to limit, as soon as the pool has the units at all.
    """
    unit = k.unit_of(s, job)
    wanted = s.need[job, unit] * (s.jobs[job].least if s.jobs[job].form == k.PER_NODE else 1)
    have = start_over(s, job)
    n, at = s.counts[k.HOLDING], 0
    while at < n and s.jobs[s.holding[at]].ends_by < np.inf:
        time = s.jobs[s.holding[at]].ends_by
        while at < n and s.jobs[s.holding[at]].ends_by == time:
            other = s.holding[at]
            at += 1
            k.give_back(s, other, k.LATER_FREE)
            for place in range(s.jobs[other].slot, s.jobs[other].slot + s.jobs[other].on):
                have += s.given[place, unit]
        if have >= wanted:
            nodes = k.choose(s, job, k.LATER_FREE, -np.inf, c.fit)
            if nodes > 0:
                return time, nodes
    return np.inf, 0


@k.uncached
def look_ahead(s: k.State, c: k.Setup, job: int) -> None:
    """EASY: reserve what a head needs of its nodes, where it is expected to start first."""
    time, nodes = expected(s, c, job)
    if nodes > 0:
        reserve(s, job, nodes, time)
        k.forget_pools(s)
    for node in range(len(s.nodes)):
        s.nodes[node].kept = False


@k.uncached
def note_shorter_limits(s: k.State, c: k.Setup, job: int) -> None:
    """EASY: with which limits a job that cannot start now, because of its own, could. Nothing that has happened until
    now depends on its limit: so it would have.
    """
    now = s.clock[k.NOW]
    for at in range(len(k.SHORTER)):
        until = now + k.SHORTER[at]
        # What does not fit until then does not fit for longer.
        if k.SHORTER[at] >= s.jobs[job].limit or not k.may_fit(s, job, until):
            return
        if s.jobs[job].sooner[at] > now:
            if k.choose(s, job, k.NOW_FREE, until, c.fit) == 0:
                return
            s.jobs[job].sooner[at] = now


@k.inlined
def has_had_its_part(s: k.State, c: k.Setup, job: int) -> bool:
    """sched/backfill: whether this pass has looked at as many jobs of the user, or of the partition, as it may. Else
    this one counts.
    """
    user, peer = s.jobs[job].user - 1, s.jobs[job].peer - 1
    if c.bf_max_job_part > 0 and peer >= 0 and s.jobs[peer].of_peers >= c.bf_max_job_part:
        return True
    if c.bf_max_job_user > 0 and user >= 0 and s.jobs[user].of_user >= c.bf_max_job_user:
        return True
    if peer >= 0:
        s.jobs[peer].of_peers += 1
    if user >= 0:
        s.jobs[user].of_user += 1
    return False


@k.uncached
def queue_pass(s: k.State, c: k.Setup, mode: k.Index) -> None:
    """Go through the queue once.

    Main pass (`NO_BACKFILL`): the first job of a partition that does not fit blocks the partition and its nodes. One at
    an event between two multiples of `FULL_PASS` tries the first jobs (`default_queue_depth`). The next multiple is due
    where others are left that might start.
    EASY: that job gets the one reservation of its partition.
    sched/backfill: each job that is looked at and cannot start plans its nodes.
    A job that has not waited for `bf_min_age_reserve` neither blocks nor plans; nor does one plan after
    `bf_job_part_count_reserve` others of its partition.
    """
    s.counts[k.PASSES] += 1
    now = s.clock[k.NOW]
    main = mode == k.NO_BACKFILL
    partitions = len(s.blocked)
    open_partitions = partitions
    s.blocked[:] = False
    k.forget_pools(s)
    for partition in range(len(s.plans.partitions)):
        s.plans.partitions[partition].planned = 0
        s.plans.partitions[partition].reserved = 0
    s.counts[k.LISTED] = -1
    for node in range(len(s.nodes)):
        s.nodes[node].shadow = np.inf
        s.nodes[node].plans = 0
    n, at, stay = s.counts[k.QUEUED], 0, 0
    last, tested, started = n, 0, 0
    full = k.next_multiple(now, k.FULL_PASS)
    if main and c.sched_interval <= 0.0 and now < full:
        last = min(n, c.default_queue_depth + 1)  # slurmctld counts before it compares: one more than the setting says
    if mode == k.SLURM_BACKFILL:
        if c.bf_max_job_user > 0 or c.bf_max_job_part > 0:  # what is passed over for these does not count
            for place in range(n):
                s.jobs[max(s.jobs[s.queue[place]].user - 1, 0)].of_user = 0
                s.jobs[max(s.jobs[s.queue[place]].peer - 1, 0)].of_peers = 0
        else:
            last = min(n, c.bf_max_job_test)
        if end_of_plans(c, np.floor(now)) < np.floor(now):
            last = 0
        if not c.plan_all:
            # A reservation only keeps later jobs from starting: behind the last one that may start, none counts.
            while last > 0 and not k.may_fit(s, s.queue[last - 1], now + s.jobs[s.queue[last - 1]].limit):
                last -= 1
    while at < n:
        if (main and open_partitions == 0) or at >= last:
            break
        job = s.queue[at]
        p = s.jobs[job].partition
        if mode == k.SLURM_BACKFILL:
            if tested == c.bf_max_job_test or started == c.bf_max_job_start > 0:
                break
            if has_had_its_part(s, c, job):
                s.queue[stay] = job
                stay += 1
                at += 1
                s.blocked[p] = True
                continue
            tested += 1
        at += 1
        until = now + s.jobs[job].limit
        looked = not s.blocked[p] if main else k.may_fit(s, job, until)
        nodes = 0
        if looked:
            if mode == k.SLURM_BACKFILL:
                looked = keep_off_plans(s, job)
            if looked:
                nodes = k.choose(s, job, k.NOW_FREE, until, c.fit)
        if nodes > 0:
            for place in range(nodes):
                node = s.nodes[place].pick_node
                if until > s.nodes[node].shadow:
                    for d in range(k.DIMENSIONS):
                        s.amount[k.BEYOND, node, d] -= s.pick[place, d]
            s.counts[k.UNRANKED] -= s.jobs[job].key == np.inf
            k.begin(s, c, job, nodes, s.blocked[p])
            k.forget_pools(s)
            s.counts[k.LISTED] = -1
            started += 1
            continue
        s.queue[stay] = job
        stay += 1
        if mode != k.EASY_BACKFILL and now - s.jobs[job].submit < c.bf_min_age_reserve:
            s.blocked[p] = s.blocked[p] or not main
            continue
        if main and looked:
            open_partitions -= 1
            if partitions > 1:
                for place in range(s.part_ptr[p], s.part_ptr[p + 1]):
                    s.nodes[s.part_nodes[place]].kept = True
        elif mode == k.SLURM_BACKFILL:
            if not 0 < c.bf_job_part_count_reserve <= s.plans.partitions[p].reserved:
                plan(s, c, job)
        elif mode == k.EASY_BACKFILL:
            if c.shorter:
                note_shorter_limits(s, c, job)
            if not s.blocked[p]:
                look_ahead(s, c, job)
        s.blocked[p] = True
    if main and open_partitions > 0:
        for place in range(at, n):
            if not s.blocked[s.jobs[s.queue[place]].partition]:
                s.clock[k.MAIN_DUE] = full
                break
    if stay < at:
        while at < n:
            s.queue[stay] = s.queue[at]
            stay += 1
            at += 1
        s.counts[k.QUEUED] = stay
    for node in range(len(s.nodes)):
        s.nodes[node].shadow = np.inf
        s.nodes[node].kept = False


def _advance_for(stamp: int) -> Any:
    """`advance` for one source text of the other two files: Numba's cache looks at one file for each function, but what
    a function closes over is part of the key.
    """

    @k.entry_point
    def advance(s: k.State, c: k.Setup, ranking: k.Ranking, until: float) -> int:
        """Move to the time `until` (seconds), events at it included, or to the end of all work.

        Returns:
            `DONE`; or `REFRESH`: the caller is to rank the queue now, and then to call again.
        """
        jobs = len(s.jobs)
        while stamp >= 0:  # always
            if s.counts[k.REFRESHING] == 0:
                time = min(s.clock[k.MAIN_DUE], s.clock[k.BACKFILL_DUE], s.clock[k.REFRESH_DUE])
                if s.counts[k.HOLDING] > 0:
                    time = min(time, s.jobs[s.heap[0]].freed)
                if s.counts[k.NEXT] < jobs:
                    time = min(time, s.jobs[s.counts[k.NEXT]].submit)
                if time > until or time == np.inf:
                    if until < np.inf:
                        s.clock[k.NOW] = max(until, s.clock[k.NOW])
                    return DONE
                now = max(time, s.clock[k.NOW])
                s.clock[k.NOW] = now
                ended = False
                while s.counts[k.HOLDING] > 0 and s.jobs[s.heap[0]].freed <= now:
                    k.finish(s, c, k.pop_end(s))
                    ended = True
                submitted = k.submit(s)
                if ended or submitted:
                    k.something_changed(s, c)
                    if not ranking.fixed or s.counts[k.UNRANKED] > 0:
                        due = now if submitted and ranking.at_once else k.next_multiple(now, c.refresh)
                        s.clock[k.REFRESH_DUE] = min(s.clock[k.REFRESH_DUE], due)
                if s.clock[k.REFRESH_DUE] <= now:
                    s.clock[k.REFRESH_DUE] = np.inf
                    if s.counts[k.QUEUED] > 0:
                        s.counts[k.REFRESHES] += 1
                        s.clock[k.LAST_REFRESH] = now
                        if not ranking.fixed:
                            s.counts[k.REFRESHING] = 1
                            return REFRESH
                        if k.rank_fixed(s):
                            k.something_changed(s, c)
            s.counts[k.REFRESHING] = 0
            now = s.clock[k.NOW]
            for due in (k.MAIN_DUE, k.BACKFILL_DUE):
                if s.clock[due] <= now:
                    s.clock[due] = np.inf
                    mode = k.NO_BACKFILL if due == k.MAIN_DUE else c.backfill
                    if s.counts[k.QUEUED] > 0 and (due == k.MAIN_DUE or mode != k.NO_BACKFILL):
                        queue_pass(s, c, mode)
            if s.counts[k.QUEUED] == 0:
                s.clock[k.MAIN_DUE] = np.inf
                s.clock[k.BACKFILL_DUE] = np.inf
                s.clock[k.REFRESH_DUE] = np.inf
            elif (
                ranking.ages
                and s.clock[k.REFRESH_DUE] == np.inf
                and (s.counts[k.HOLDING] > 0 or s.counts[k.NEXT] < jobs)
            ):
                # Where nothing runs and nothing is to come, a job cannot start until somebody changes something.
                s.clock[k.REFRESH_DUE] = k.next_multiple(max(s.clock[k.LAST_REFRESH] + c.stale, now), c.refresh)
        return DONE

    return advance


advance: Final = _advance_for(k.source_stamp(k, backfill_kernel))
