"""sched/backfill in compiled code: which waiting jobs a pass plans, where, and from when.

What must come out is in docs/simulator.md, "When a planned job is thought to start"; the reference in `tests/oracles`
does it step by step. Here most of these steps are proven to fail without being made. Words of this page:

- A *position* is the `s` of that page: a second from which a job is tried. It moves to the end of a plan ("step 3") or
  to the start that failed ("step 4"). `later` is the first end of a plan that keeps a node from the job.
- *Releases* are what running jobs give back, in the order of `State.holding`.
- *Kinds* are jobs that differ in nothing but their limits. What depends on the kind alone is computed once, and again
  after a job has started.

Why steps may be left out. All of it needs two facts: in a pass, plans are only added; and a start is on nodes that have
room by then (`ready`) and no plan until the limit.

1. So no start is before `clear` of enough nodes, the first time at which that is true of each (`no_start_before`). It
   only grows, with the limit, with plans, and with jobs that start. If it is outside of `bf_window`, the job is not
   planned, nor is a later one of its kind with the same limit or a longer one.
2. Where `later` is before that time, the position cannot succeed, and the job is tried again at `later`. It is tried at
   that very time even if there were failed starts in between: the plan that ends then is in the way at all of them.
3. By the same argument a position of one job is a position of all later jobs of its kind with a longer limit: more
   plans are in their way. So these begin where that job was first really tried.
4. What a position gives depends on which nodes of the partition have no plan from there to the limit. As long as these
   are the same, so is the expected start. And a job that fits too late fits no sooner while nodes are only lost.

A plan takes all of the steps that it touches (`bf_resolution`, in whole seconds as in slurm.conf). Plans of a node do
not overlap even so, and stand in order: the others begin and end with a step, and it ends before they begin.
"""

# Numba compiles loops over arrays best: the linter's rules for branches do not apply here.
# ruff: noqa: C901

from typing import Final

import numpy as np

from rltuned.core.tables import Floats
from rltuned.simulate import kernel as k

GROUP: Final = 30.0
"""Seconds: running jobs are taken away in groups. A group spans this time, or 2, 4, 8 … times as much."""

NEVER: Final = np.int64(2**62)


@k.inlined
def first_after(ends: Floats, n: int, time: float) -> int:
    """Of the first `n` times, which never decrease: the place of the first one after `time`."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if ends[middle] > time:
            high = middle
        else:
            low = middle + 1
    return low


@k.inlined
def keep_smallest(smallest: Floats, found: k.Index, wanted: k.Index, value: float) -> k.Index:
    """Put a value into the `found` smallest so far, sorted, at most `wanted`. Returns how many there are then."""
    found = min(found + 1, wanted)
    to = found - 1
    while to > 0 and smallest[to - 1] > value:
        smallest[to] = smallest[to - 1]
        to -= 1
    smallest[to] = value
    return found


@k.inlined
def is_planned(s: k.State, node: int, since: float, until: float) -> bool:
    """Whether a job has planned the node for some of that time, its last moment included."""
    n = s.nodes[node].plans
    at = first_after(s.plans.end[node], n, since)
    return bool(at < n and s.plans.start[node, at] <= until)


@k.inlined
def free_from(s: k.State, node: int, since: float, limit: float, latest: float) -> float:
    """The first time from `since` on from which nobody has planned the node for so long. After `latest`: any such."""
    starts, ends, n = s.plans.start[node], s.plans.end[node], s.nodes[node].plans
    at = first_after(ends, n, since)
    while at < n and starts[at] <= since + limit and since <= latest:
        since = ends[at]
        at += 1
    return since


@k.inlined
def is_taken(s: k.State, partition: int, place: k.Index, since: float, until: float) -> bool:
    """Whether that running job is on a node of the partition that is usable and not planned during that time."""
    job = s.holding[place]
    for at in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
        node = s.given_node[at]
        if s.plans.member[partition, node] and s.nodes[node].usable and not is_planned(s, node, since, until):
            return True
    return False


@k.uncached
def whole_steps(time: float, step: float) -> float:
    """`time` rounded down to a multiple of `step`; as it is when the step is 0 or it is infinite."""
    return np.floor(time / step) * step if step > 0.0 and time < np.inf else time


@k.uncached
def end_of_steps(time: float, step: float) -> float:
    """`time` rounded up to a multiple of `step`; as it is when the step is 0 or it is infinite."""
    return np.ceil(time / step) * step if step > 0.0 and time < np.inf else time


@k.uncached
def end_of_plans(c: k.Setup, second: float) -> float:
    """Where the table of a pass ends: nothing is tried after it. It is before now where a step is longer than
    `bf_window`, for a part of each step.
    """
    return whole_steps(second + c.bf_window, c.bf_resolution)


@k.uncached
def keep_off_plans(s: k.State, job: int) -> bool:
    """Keep the job off the nodes of its pool that have a plan before its limit. False: it cannot start now."""
    since = np.floor(s.clock[k.NOW])
    until = since + s.jobs[job].limit
    per_node, found = s.jobs[job].form == k.PER_NODE, 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        node = s.pool_nodes[at]
        s.nodes[node].kept = False
        if per_node and not k.can_take(s, job, node, k.NOW_FREE, -np.inf):
            continue
        s.nodes[node].kept = is_planned(s, node, since, until)
        found += 0 if s.nodes[node].kept else 1
    return bool(found >= s.jobs[job].least)


# --- what running jobs give back


@k.inlined
def list_releases(s: k.State) -> None:
    """What the running jobs give back, by node. From then on until a job starts, kinds can be remembered."""
    p = s.plans
    n = s.counts[k.HOLDING]
    while n > 0 and s.jobs[s.holding[n - 1]].ends_by == np.inf:
        n -= 1
    s.counts[k.LISTED] = n
    s.counts[k.KINDS] = 0
    p.release_ptr[:] = 0
    for place in range(n):
        job = s.holding[place]
        p.limit_end[place] = np.floor(s.jobs[job].ends_by)
        for at in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
            p.release_ptr[s.given_node[at] + 2] += 1
    for node in range(len(s.nodes) + 1):
        p.release_ptr[node + 1] += p.release_ptr[node]
    # Entry `node + 1` is where the next release of the node goes: in the end, where those of the next node begin.
    for place in range(n):
        job = s.holding[place]
        for at in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
            to = p.release_ptr[s.given_node[at] + 1]
            p.release_at[to], p.release_slot[to] = place, at
            p.release_ptr[s.given_node[at] + 1] = to + 1


@k.inlined
def ready_after(s: k.State, job: int, node: int) -> k.Index:
    """After which running job's end the node has room for the job: -1 now, or `NEVER`.

    For a job that asks in all: room for one unit.
    """
    if not s.nodes[node].usable:
        return NEVER
    p = s.plans
    lone = s.jobs[job].alone != k.SHARED
    # A node gives one unit where it has this part of all that is asked for; of disk, all.
    total = s.need[job, k.unit_of(s, job)] if s.jobs[job].form == k.IN_ALL else np.int64(1)
    gpus, cpus = s.amount[k.NOW_FREE, node, 0], s.amount[k.NOW_FREE, node, 1]
    mem, disk = s.amount[k.NOW_FREE, node, 2], s.amount[k.NOW_FREE, node, 3]
    on, closed = s.jobs_on[k.NOW_FREE, node], s.closed[k.NOW_FREE, node]
    at, after = p.release_ptr[node], np.int64(-1)
    while True:
        if (
            gpus * total >= s.need[job, 0]
            and cpus * total >= s.need[job, 1]
            and mem * total >= s.need[job, 2]
            and disk >= s.need[job, 3]
            and not closed
            and not (lone and on > 0)
        ):
            return after
        if at == p.release_ptr[node + 1]:
            return NEVER
        slot, after = p.release_slot[at], p.release_at[at]
        gpus += s.given[slot, 0]
        cpus += s.given[slot, 1]
        mem += s.given[slot, 2]
        disk += s.given[slot, 3]
        on -= 1
        closed = closed and s.jobs[s.holding[after]].alone == k.SHARED
        at += 1


@k.inlined
def alike(s: k.State, a: int, b: int) -> bool:
    """Whether two jobs are of one kind."""
    for d in range(k.DIMENSIONS):
        if s.need[a, d] != s.need[b, d]:
            return False
    return bool(
        s.jobs[a].pool == s.jobs[b].pool
        and s.jobs[a].partition == s.jobs[b].partition
        and s.jobs[a].least == s.jobs[b].least
        and s.jobs[a].form == s.jobs[b].form
        and s.jobs[a].most_nodes == s.jobs[b].most_nodes
        and s.jobs[a].alone == s.jobs[b].alone
    )


@k.inlined
def kind_of(s: k.State, job: int) -> int:
    """The place of the job's kind. A new kind takes the place of the oldest one where there is no other."""
    p = s.plans
    if s.counts[k.LISTED] < 0:
        list_releases(s)
    room = len(p.kinds)
    for kind in range(min(s.counts[k.KINDS], room)):
        if alike(s, job, p.kinds[kind].job):
            return kind
    new: int = s.counts[k.KINDS] % room
    s.counts[k.KINDS] += 1
    p.kinds[new].job = job
    p.kinds[new].limit = p.kinds[new].hopeless = np.nan  # compared to anything: no
    p.kinds[new].before = -np.inf
    if s.jobs[job].form == k.IN_ALL:
        after = all_fit_after(s, job, np.inf, np.inf, np.inf)
        p.kinds[new].before = p.limit_end[after] if 0 <= after < NEVER else (np.inf if after == NEVER else -np.inf)
    first = s.pool_ptr[s.jobs[job].pool]
    for at in range(s.pool_ptr[s.jobs[job].pool + 1] - first):
        p.ready[new, at] = ready_after(s, job, s.pool_nodes[first + at])
    return new


# --- when a job is thought to start


@k.inlined
def no_start_before(s: k.State, kind: int, job: int, second: float, latest: float) -> float:
    """A time before which the job cannot be planned (1 in the text above); infinite if that is after `latest`."""
    p = s.plans
    first, limit = s.pool_ptr[s.jobs[job].pool], s.jobs[job].limit
    nodes = s.pool_ptr[s.jobs[job].pool + 1] - first
    if not limit >= p.kinds[kind].limit:  # what is known of longer jobs is no bound for it
        p.kinds[kind].since = second
        for at in range(nodes):
            after = p.ready[kind, at]
            p.clear[kind, at] = np.inf
            if after < NEVER:
                p.clear[kind, at] = max(second, p.limit_end[after]) if after >= 0 else second
    p.kinds[kind].limit = limit
    # The smallest times of as many nodes as the job needs, sorted.
    found: k.Index = k.ZERO
    wanted, worst = max(s.jobs[job].least, 1), latest
    for at in range(nodes):
        time = p.clear[kind, at]
        if time > worst or time == np.inf:
            continue
        node = s.pool_nodes[first + at]
        if s.nodes[node].plans > 0:
            time = free_from(s, node, time, limit, worst)
            p.clear[kind, at] = time
            if time > worst or time == np.inf:
                continue
        found = keep_smallest(p.earliest, found, wanted, time)
        if found == wanted:
            worst = p.earliest[wanted - 1]
    return max(p.earliest[wanted - 1], p.kinds[kind].before) if found == wanted else np.inf


@k.inlined
def fits_after(s: k.State, kind: int, job: int, since: float, later: float) -> tuple[k.Index, float]:
    """After which running job's end the job fits on the nodes without a plan from then on: -1 now, or `NEVER`.

    It may be given up where that end is after `later`. The second value is a position: before it the answer is not
    earlier, because no node comes in that could make it so.
    """
    limit, opens = s.jobs[job].limit, np.inf
    p = s.plans
    first = s.pool_ptr[s.jobs[job].pool]
    found: k.Index = k.ZERO
    wanted, worst = s.jobs[job].least, NEVER
    if s.jobs[job].form == k.IN_ALL:
        worst = np.int64(all_fit_after(s, job, since, since + limit, later))
        wanted = 0
    for at in range(s.pool_ptr[s.jobs[job].pool + 1] - first):
        after = p.ready[kind, at]
        if after >= worst:
            continue
        time = free_from(s, s.pool_nodes[first + at], since, limit, opens)
        if time > since:
            opens = min(opens, time)
            continue
        if wanted == 0:
            continue
        if wanted == 1:
            worst = after
            continue
        found = keep_smallest(p.earliest, found, wanted, float(after))
        if found == wanted:
            worst = np.int64(p.earliest[wanted - 1])
    return worst, opens


@k.uncached
def units_later(s: k.State, job: int, node: int) -> int:
    """Units of a request in all that the node gives at the time that is being planned."""
    return (
        max(k.units_on(s, job, node, k.LATER_FREE, -np.inf), 0) if k.open_to(s, job, node, k.LATER_FREE, -np.inf) else 0
    )


@k.uncached
def all_fit_after(s: k.State, job: int, since: float, until: float, later: float) -> k.Index:
    """As `fits_after`, of a job that asks in all; given up after `later`. Leaves what is free then on the nodes that it
    may have, and marks them.

    Such a job fits at every later time, too: the most units come from the fewest nodes, and units only become more.
    """
    total, least = s.need[job, k.unit_of(s, job)], max(s.jobs[job].least, 1)
    found, together = 0, 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        node = s.pool_nodes[at]
        s.nodes[node].kept = not s.nodes[node].usable or is_planned(s, node, since, until)
        s.nodes[node].marked = not s.nodes[node].kept
        if s.nodes[node].kept:
            continue
        s.jobs_on[k.LATER_FREE, node] = s.jobs_on[k.NOW_FREE, node]
        s.closed[k.LATER_FREE, node] = s.closed[k.NOW_FREE, node]
        for d in range(k.DIMENSIONS):
            s.amount[k.LATER_FREE, node, d] = s.amount[k.NOW_FREE, node, d]
        units = units_later(s, job, node)
        found += units > 0
        together += units
    after, moved = -1, True
    while True:
        if moved and together >= total and found >= least and k.choose(s, job, k.LATER_FREE, -np.inf, k.SLURM) > 0:
            return after
        after += 1
        if after == s.counts[k.LISTED]:
            return NEVER
        if s.plans.limit_end[after] > later:
            return after
        moved = False
        other = s.holding[after]
        for at in range(s.jobs[other].slot, s.jobs[other].slot + s.jobs[other].on):
            node = s.given_node[at]
            if s.nodes[node].marked:
                units = units_later(s, job, node)
                k.release(s, other, at, k.LATER_FREE)
                more = units_later(s, job, node)
                found += units == 0 and more > 0
                together += more - units
                moved = moved or more > units


@k.inlined
def last_of_group(s: k.State, partition: int, after: k.Index, since: float, until: float) -> k.Index:
    """The last running job of the group with which this one is taken away; its end is the start that is expected.

    The groups need not be gone through. Their bounds are at 30, 60, 120 … s after the first end, and those bounds count
    between which there are ends. A group ends at its bound; where the last job of the list before the bound is not
    taken, it also takes the next job that is. So this one is at the end of a group if there are jobs behind the last
    taken one and before the bound below it; else it is in the group of the bound above it.
    """
    p, n = s.plans, s.counts[k.LISTED]
    first = k.ZERO
    while first < after and not is_taken(s, partition, first, since, until):
        first += 1
    base = (np.floor(p.limit_end[first] / GROUP) + 1) * GROUP
    window, below = GROUP, -np.inf
    while base + window < p.limit_end[after]:
        below = base + window
        window *= 2.0
    if below > -np.inf:
        place = first_after(p.limit_end, n, below) - 1
        while place < after and not is_taken(s, partition, place, since, until):
            place += 1
        if place == after:
            return after
    following = first_after(p.limit_end, n, base + window)
    last = following - 1
    while last > after and not is_taken(s, partition, last, since, until):
        last -= 1
    if last < following - 1:
        for place in range(following, n):
            if is_taken(s, partition, place, since, until):
                return place
    return last


@k.inlined
def same_nodes(s: k.State, partition: int, since: float, limit: float) -> tuple[float, float]:
    """The partition's nodes without a plan from `since` on are the same up to this position, and this limit."""
    opens, shuts = np.inf, np.inf
    for place in range(s.part_ptr[partition], s.part_ptr[partition + 1]):
        node = s.part_nodes[place]
        time = free_from(s, node, since, limit, opens)
        if time > since:
            opens = min(opens, time)
        else:
            at = first_after(s.plans.end[node], s.nodes[node].plans, since)
            if at < s.nodes[node].plans:
                shuts = min(shuts, s.plans.start[node, at])
    return opens, shuts


@k.inlined
def choose_later(
    s: k.State, c: k.Setup, kind: int, job: int, after: k.Index, last: k.Index, since: float, until: float
) -> int:
    """Nodes without a plan during that time, when the running jobs up to `last` have ended; how many."""
    if s.jobs[job].form == k.IN_ALL:
        for place in range(after + 1, last + 1):
            other = s.holding[place]
            for at in range(s.jobs[other].slot, s.jobs[other].slot + s.jobs[other].on):
                if s.nodes[s.given_node[at]].marked:
                    k.release(s, other, at, k.LATER_FREE)
        return k.choose(s, job, k.LATER_FREE, -np.inf, c.fit)
    p = s.plans
    first, unit, found = s.pool_ptr[s.jobs[job].pool], k.unit_of(s, job), k.ZERO
    for at in range(s.pool_ptr[s.jobs[job].pool + 1] - first):
        node = s.pool_nodes[first + at]
        if p.ready[kind, at] > last or is_planned(s, node, since, until):
            continue
        free, cpus = s.amount[k.NOW_FREE, node, unit], s.amount[k.NOW_FREE, node, k.CPU]
        for place in range(p.release_ptr[node], p.release_ptr[node + 1]):
            if p.release_at[place] > last:
                break
            free += s.given[p.release_slot[place], unit]
            cpus += s.given[p.release_slot[place], k.CPU]
        s.amount[k.LATER_FREE, node, k.CPU] = cpus
        s.nodes[found].candidate, s.nodes[found].candidate_units = node, free
        found += 1
    wanted = min(found, s.jobs[job].most_nodes)
    if c.fit == k.SLURM:
        k.pick_from_runs(s, k.LATER_FREE, found, wanted, s.jobs[job].least)
    else:
        k.pick_by_units(s, found, wanted, c.fit)
    return int(wanted)


# --- plans


@k.inlined
def insert(starts: Floats, ends: Floats, n: int, start: float, end: float) -> None:
    """Into two columns that are sorted by the second one, then by the first."""
    at = n
    while at > 0 and (ends[at - 1] > end or (ends[at - 1] == end and starts[at - 1] > start)):
        starts[at], ends[at] = starts[at - 1], ends[at - 1]
        at -= 1
    starts[at], ends[at] = start, end


@k.inlined
def reserve_whole(s: k.State, partition: int, nodes: int, start: float, end: float) -> None:
    """The chosen nodes belong to one job during that time."""
    p = s.plans
    for place in range(nodes):
        node = s.nodes[place].pick_node
        insert(p.start[node], p.end[node], s.nodes[node].plans, start, end)
        s.nodes[node].plans += 1
    for other in range(len(p.partitions)):
        shared = other == partition
        for place in range(nodes):
            shared = shared or p.member[other, s.nodes[place].pick_node]
        if shared:
            insert(p.by_end_start[other], p.by_end[other], p.partitions[other].planned, start, end)
            p.partitions[other].planned += 1


@k.uncached
def plan(s: k.State, c: k.Setup, job: int) -> None:
    """Reserve whole nodes for a job that cannot start now, where it is expected to start first, within `bf_window`."""
    plan_kind(s, c, kind_of(s, job), job)
    if s.jobs[job].form == k.IN_ALL:
        for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
            s.nodes[s.pool_nodes[at]].marked = False


@k.inlined
def plan_kind(s: k.State, c: k.Setup, kind: int, job: int) -> None:
    """`plan`; it may leave marks on the nodes of the job's pool."""
    p = s.plans
    second, limit, partition = np.floor(s.clock[k.NOW]), s.jobs[job].limit, s.jobs[job].partition
    latest, end_of_table = second + c.bf_window, end_of_plans(c, second)
    if limit >= p.kinds[kind].hopeless:
        return
    bound = no_start_before(s, kind, job, second, latest)
    if bound > latest or bound == np.inf:
        p.kinds[kind].hopeless = limit
        return
    since, tried = p.kinds[kind].since, False
    n = p.partitions[partition].planned
    low = first_after(p.by_end[partition], n, since)
    # No start before `soonest`, as long as the position is before `opens` and the limit before `shuts`.
    soonest, opens, shuts = -np.inf, np.inf, np.inf
    while since <= end_of_table and since < np.inf:
        until, at = since + limit, low
        while at < n and p.by_end_start[partition, at] > until:
            at += 1
        later = p.by_end[partition, at] if at < n else np.inf
        start = np.inf
        after: k.Index = NEVER
        last: k.Index = -1
        if later >= bound and (later >= soonest or since >= opens or until >= shuts):
            if not tried:
                p.kinds[kind].since = since
                tried = True
            after, opens = fits_after(s, kind, job, since, later)
            soonest, shuts = np.inf, np.inf
            if after == -1:
                start = since
            elif after < NEVER:
                soonest = p.limit_end[after]
                if soonest <= later:
                    last = last_of_group(s, partition, after, since, until)
                    soonest = p.limit_end[last]
                    start = max(soonest, since)
                    if start > later:
                        opens, shuts = same_nodes(s, partition, since, limit)
        if start == np.inf or later < start:
            since = later
        elif start > latest:
            return
        else:
            soonest = -np.inf
            nodes = choose_later(s, c, kind, job, after, last, since, until)
            clear = True
            for place in range(nodes):
                clear = clear and not is_planned(s, s.nodes[place].pick_node, start, start + limit)
            if clear:
                step = c.bf_resolution
                begin = whole_steps(start, step)
                if begin < end_of_table:
                    reserve_whole(s, partition, nodes, begin, max(end_of_steps(start + limit, step), begin + step))
                s.jobs[job].planned = start
                p.partitions[partition].reserved += 1
                return
            since = start
        while low < n and p.by_end[partition, low] <= since:
            low += 1
