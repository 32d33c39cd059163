"""The compiled event loop: slurmctld's main pass and backfill over flat arrays (docs/simulator.md).

Everything that changes is in `State`; `advance` moves it in time. Only `rltuned.simulate` imports this module, most of
it through `rltuned.simulate.stepping.Stepper`.

A ranking is a number per job (`key`, smaller first). Who computes it is not known here. The keys of a ranking that
never changes are given beforehand (`fixed`). For any other, `advance` returns at each refresh and is called again.

Jobs and nodes are record arrays: a compiled function gets a handful of pointers, not seventy. That makes calls cheap
and compilation short.

The state is kept such that nothing is searched for: the queue is always sorted, running jobs are in a heap by end and
in a list by limit (what backfill goes by), free resources are counted per node. An EASY backfill pass over thousands of
jobs looks at two numbers per pool before it looks at nodes.
"""

# Numba compiles loops over arrays best: the linter's rules for iterators do not apply here.
# ruff: noqa: C901, SIM110

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from rltuned.cluster.tables import Floats

Array = npt.NDArray[Any]

Index = int | np.int64
Function = TypeVar("Function", bound=Callable[..., Any])


def entry_point(function: Function) -> Function:
    """Compile a function that Python calls, too.

    Nothing is allocated in this module, so nothing needs Numba's reference counts. Counting took most of the time.
    """
    options: dict[str, Any] = {"cache": True, "_nrt": False}
    return cast("Function", njit(**options)(function))


def inner(function: Function) -> Function:
    """Compile a function that only compiled code calls. Wrappers for Python would be most of what is compiled."""
    options: dict[str, Any] = {"cache": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Function", njit(**options)(function))


GPU: Final = 0
CPU: Final = 1
DISK: Final = 3
DIMENSIONS: Final = 4
"""GPUs, CPUs, MiB of memory, MiB of local disk."""

PER_NODE: Final = 0
IN_ALL: Final = 1

SHARED: Final = 0
ISOLATED: Final = 1
"""OverSubscribe=NO: starts on idle nodes only, and nobody joins."""
WHOLE: Final = 2
"""Whole nodes, all that they have."""

BEST: Final = 0
WORST: Final = 1
SLURM: Final = 2

NO_BACKFILL: Final = np.int64(0)
EASY_BACKFILL: Final = np.int64(1)
SLURM_BACKFILL: Final = np.int64(2)

WAITING: Final = 0
RUNNING: Final = 1
COMPLETED: Final = 2
TIMEOUT: Final = 3

UNFINISHED: Final = 1e-6
"""Seconds of work that a job killed under contention must have left to count as timed out."""

GROUP: Final = 30.0
"""Seconds: sched/backfill takes running jobs away in groups. A group spans this time, or 2, 4, 8 … times as much."""

DONE: Final = 0
REFRESH: Final = 1
"""What `advance` returns."""

# First index of `State.amount`, `jobs_on` and `closed`. Of plain integers, Numba would compile a function for each.
NOW_FREE: Final = np.int64(0)
LATER_FREE: Final = np.int64(1)
"""At the time that is being planned."""
ROOM: Final = np.int64(2)
"""Of an empty node."""
BEYOND: Final = np.int64(3)
"""What the reservations of this pass leave on a node when they have begun."""
PROMISED: Final = np.int64(4)
"""What they take."""

# Places in `State.clock`.
NOW: Final = 0
BACKFILL_DUE: Final = 1
REFRESH_DUE: Final = 2
LAST_REFRESH: Final = 3
MAIN_DUE: Final = 4

# Places in `State.counts`.
QUEUED: Final = 0
NEXT: Final = 1
HEAP: Final = 2
HOLDING: Final = 3
PASSES: Final = 4
REFRESHES: Final = 5
UNRANKED: Final = 6
"""Queued jobs that no refresh has seen."""
REFRESHING: Final = 7
"""1 from `REFRESH` until the next `advance`, which goes on with the same instant."""
COUNTS: Final = 8


JOB: Final = np.dtype(
    [
        # As submitted.
        ("submit", "f8"),
        ("run", "f8"),  # seconds of work
        ("limit", "f8"),
        ("fixed", "f8"),  # key of a ranking that never changes
        ("form", "i8"),  # PER_NODE or IN_ALL
        ("least", "i8"),  # nodes: exactly (per node) or at least (in all)
        ("most_nodes", "i8"),  # at most, of a request in all
        ("pool", "i8"),
        ("partition", "i8"),
        ("tier", "i8"),
        ("alone", "i8"),  # SHARED, ISOLATED or WHOLE
        ("slot", "i8"),  # where its allocation begins in `given_node` and `given`
        ("fewest", "i8"),  # on more nodes than this it is spread (speeds only)
        # What has become of it.
        ("key", "f8"),  # infinite while no refresh has seen the job
        ("start", "f8"),
        ("end", "f8"),
        ("ends_by", "f8"),  # start + limit
        ("fate", "i8"),
        ("backfilled", "i8"),
        ("on", "i8"),  # nodes that it got
        ("work_left", "f8"),
        ("speed", "f8"),
        ("as_of", "f8"),  # when `work_left` was true (contention only)
    ]
)

NODE: Final = np.dtype(
    [
        ("usable", "?"),
        ("gpu_type", "i8"),  # column of `State.rates`; −1: no GPUs
        ("kept", "?"),  # not for the job that is being looked at
        ("shadow", "f8"),  # when the first reservation on it begins
        # Working memory: chosen nodes, candidates.
        ("pick_node", "i8"),
        ("candidate", "i8"),
        ("candidate_units", "i8"),
        ("fill", "i8"),
        ("marked", "?"),
        ("plans", "i8"),  # of this pass of Backfill.SLURM: how many in `plan_start` and `plan_end`
    ]
)

END: Final = np.dtype([("time", "f8"), ("job", "i8")])


class State(NamedTuple):
    """Everything that changes in a simulation. J jobs in order of submission, M nodes, P partitions, L pools."""

    jobs: Array
    """(J,) `JOB`."""
    need: Array
    """(J, 4) per node, or in all (disk always per node)."""
    rates: Floats
    """(J, 2, T) speed of each job on GPUs of each type, on the fewest nodes and spread over more; (0, 0, 0): 1."""
    given_node: Array
    """(slots,) nodes that each job has got, from its `slot` on."""
    given: Array
    """(slots, 4) what it has got of them."""
    queue: Array
    """(J,) pending jobs in their order; the first `counts[QUEUED]` count."""
    fresh: Array
    """(J,) working memory: jobs that no refresh has seen."""
    heap: Array
    """(J,) `END`: running jobs by their end."""
    holding: Array
    """(J,) running jobs by `ends_by`."""
    nodes: Array
    """(M,) `NODE`."""
    amount: Array
    """(5, M, 4)"""
    jobs_on: Array
    """(2, M) number of jobs on the node."""
    closed: Array
    """(2, M) a job that does not share is on the node."""
    pick: Array
    """(M, 4) what is taken of each chosen node."""
    tally: Array
    """Working memory: how many candidates have so many units."""
    pool_ptr: Array
    """(L+1,) where the nodes of each pool begin in `pool_nodes`; likewise of partitions."""
    pool_nodes: Array
    part_ptr: Array
    part_nodes: Array
    known: Array
    """(L,) whether `most` is true now."""
    most: Array
    """(L, 4) most GPUs of a node and GPUs in all, now, and past the reservations."""
    shadow_range: Floats
    """(L, 2) earliest and latest start of the reservations on a pool's nodes."""
    blocked: Array
    """(P,) a job of the partition could not start in this pass."""
    clock: Floats
    counts: Array
    # Backfill.SLURM only.
    plan_start: Floats
    """(M, jobs that a pass looks at) of each node's plans; `plan_end` likewise."""
    plan_end: Floats


class Ranking(NamedTuple):
    """How the queue is ranked."""

    fixed: bool
    """By the `fixed` keys of the jobs: `advance` does not return for it."""
    ages: bool
    """The order may change by time alone."""
    at_once: bool
    """A submission is ranked at once, as slurmctld does with its own priorities, not at the next refresh."""


class Setup(NamedTuple):
    """What does not change in a simulation."""

    backfill: int
    fit: int
    sched_interval: float
    bf_interval: float
    bf_offset: float
    bf_max_job_test: int
    bf_window: float
    bf_resolution: float
    refresh: float
    stale: float
    contention: float
    turnover: float
    launch: float
    kill_interval: float


@entry_point
def next_multiple(time: float, step: float) -> float:
    """The first multiple of `step` that is not before `time`; `time` itself when the step is 0."""
    if step <= 0.0:
        return time
    count = np.ceil(time / step)  # the quotient may be rounded either way
    if (count - 1.0) * step >= time:
        return (count - 1.0) * step
    return count * step if count * step >= time else (count + 1.0) * step


@entry_point
def something_changed(s: State, c: Setup) -> None:
    """The main pass and the backfill pass look at the queue again, each when it is due."""
    now = s.clock[NOW]
    s.clock[MAIN_DUE] = min(s.clock[MAIN_DUE], next_multiple(now, c.sched_interval))
    due = next_multiple(now - c.bf_offset, c.bf_interval) + c.bf_offset
    s.clock[BACKFILL_DUE] = min(s.clock[BACKFILL_DUE], due)


@inner
def killed_at(s: State, c: Setup, job: int) -> float:
    """When slurmctld ends a running job that does not end by itself."""
    return next_multiple(s.jobs[job].ends_by, c.kill_interval)


@inner
def before(s: State, a: int, b: int) -> bool:
    """Whether job `a` stands before job `b`: tier, then key, then submission."""
    if s.jobs[a].tier != s.jobs[b].tier:
        return s.jobs[a].tier > s.jobs[b].tier
    if s.jobs[a].key != s.jobs[b].key:
        return s.jobs[a].key < s.jobs[b].key
    return a < b


@entry_point
def enqueue(s: State, job: int) -> None:
    """Put a job into its place in the queue."""
    n = s.counts[QUEUED]
    low, high = 0, n
    if n > 0 and before(s, s.queue[n - 1], job):
        low = n
    while low < high:
        middle = (low + high) // 2
        if before(s, s.queue[middle], job):
            low = middle + 1
        else:
            high = middle
    for at in range(n, low, -1):
        s.queue[at] = s.queue[at - 1]
    s.queue[low] = job
    s.counts[QUEUED] = n + 1


@inner
def push_end(s: State, time: float, job: int) -> None:
    """Into the heap of ends; ties by job, so that equal ends come in order of submission."""
    at = s.counts[HEAP]
    s.counts[HEAP] = at + 1
    while at > 0:
        up = (at - 1) // 2
        if s.heap[up].time < time or (s.heap[up].time == time and s.heap[up].job < job):
            break
        s.heap[at].time, s.heap[at].job = s.heap[up].time, s.heap[up].job
        at = up
    s.heap[at].time, s.heap[at].job = time, job


@inner
def pop_end(s: State) -> int:
    """The job that ends first, out of the heap."""
    first = s.heap[0].job
    n = s.counts[HEAP] - 1
    s.counts[HEAP] = n
    time, job = s.heap[n].time, s.heap[n].job
    at = 0
    while True:
        down = 2 * at + 1
        if down >= n:
            break
        other = down + 1
        if other < n and (
            s.heap[other].time < s.heap[down].time
            or (s.heap[other].time == s.heap[down].time and s.heap[other].job < s.heap[down].job)
        ):
            down = other
        if time < s.heap[down].time or (time == s.heap[down].time and job < s.heap[down].job):
            break
        s.heap[at].time, s.heap[at].job = s.heap[down].time, s.heap[down].job
        at = down
    s.heap[at].time, s.heap[at].job = time, job
    return first


@inner
def hold_until(s: State, job: int) -> None:
    """Into the list of running jobs by the time at which their limit ends them."""
    n = s.counts[HOLDING]
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if s.jobs[s.holding[middle]].ends_by <= s.jobs[job].ends_by:
            low = middle + 1
        else:
            high = middle
    for at in range(n, low, -1):
        s.holding[at] = s.holding[at - 1]
    s.holding[low] = job
    s.counts[HOLDING] = n + 1


@inner
def let_go(s: State, job: int) -> None:
    """Out of that list."""
    n = s.counts[HOLDING]
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if s.jobs[s.holding[middle]].ends_by < s.jobs[job].ends_by:
            low = middle + 1
        else:
            high = middle
    while s.holding[low] != job:
        low += 1
    for at in range(low, n - 1):
        s.holding[at] = s.holding[at + 1]
    s.counts[HOLDING] = n - 1


@inner
def unit_of(s: State, job: int) -> int:
    """What the job is counted in: GPUs, or CPUs where it asks for no GPU."""
    return GPU if s.need[job, GPU] > 0 else CPU


@inner
def available(s: State, at_time: Index, node: int, dimension: int, until: float) -> int:
    """What a job can get of a node until its limit: if that is past a reservation, only what the reservation leaves."""
    amount = s.amount[at_time, node, dimension]
    if until > s.nodes[node].shadow:
        amount = min(amount, s.amount[BEYOND, node, dimension])
    return amount


@inner
def open_to(s: State, job: int, node: int, at_time: Index, until: float) -> bool:
    """Whether the node takes the job at all, whatever is free on it."""
    if s.nodes[node].kept or s.closed[at_time, node] or not s.nodes[node].usable:
        return False
    return s.jobs[job].alone == SHARED or (s.jobs_on[at_time, node] == 0 and until <= s.nodes[node].shadow)


@inner
def can_take(s: State, job: int, node: int, at_time: Index, until: float) -> bool:
    """Whether the node takes the job and has what it needs of a node."""
    if not open_to(s, job, node, at_time, until):
        return False
    for d in range(DIMENSIONS):
        if available(s, at_time, node, d, until) < s.need[job, d]:
            return False
    return True


@inner
def pick_need(s: State, job: int, at: int) -> None:
    """What the job takes of the node that is picked at this place: its need of a node, or the whole node."""
    for d in range(DIMENSIONS):
        s.pick[at, d] = s.amount[ROOM, s.nodes[at].pick_node, d] if s.jobs[job].alone == WHOLE else s.need[job, d]


@inner
def pick_one(s: State, job: int, at_time: Index, until: float, fit: int) -> int:
    """One node for a job that wants one; 1 when there is one, else 0. The choice is in `pick_node` and `pick`."""
    unit = unit_of(s, job)
    chosen, chosen_units = -1, 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        node = s.pool_nodes[at]
        if not can_take(s, job, node, at_time, until):
            continue
        units = s.amount[at_time, node, unit]
        if chosen < 0 or (units < chosen_units if fit == BEST else units > chosen_units and fit == WORST):
            chosen, chosen_units = node, units
            if fit == BEST and units == s.need[job, unit]:
                break
    if chosen < 0:
        return 0
    s.nodes[0].pick_node = chosen
    pick_need(s, job, 0)
    return 1


@inner
def pick_from_runs(s: State, at_time: Index, found: int, wanted: int) -> None:
    """select/cons_tres: of the runs of neighbouring candidates with enough nodes, the one with the least free CPUs.

    For one node: the node of that run with the least free CPUs. For several: the run's first nodes. Where no run has
    enough, the one with the most free CPUs is taken whole, and the search goes on for the rest.
    """
    for node in range(len(s.nodes)):
        s.nodes[node].fill = -1
    for at in range(found):
        s.nodes[s.nodes[at].candidate].fill = max(s.amount[at_time, s.nodes[at].candidate, CPU], 0)
    picked = 0
    while picked < wanted:
        best, best_end, best_size, best_enough = -1, 0, 0, False
        node = 0
        while node < len(s.nodes):
            if s.nodes[node].fill < 0:
                node += 1
                continue
            begin_run, size = node, 0
            while node < len(s.nodes) and s.nodes[node].fill >= 0:
                size += s.nodes[node].fill
                node += 1
            enough = node - begin_run >= wanted - picked
            if (
                best < 0
                or (enough and not best_enough)
                or (enough and size < best_size)
                or (not enough and not best_enough and size > best_size)
            ):
                best, best_end, best_size, best_enough = begin_run, node, size, enough
        if wanted == 1:
            for node in range(best + 1, best_end):
                if s.nodes[node].fill < s.nodes[best].fill:
                    best = node
            best_end = best + 1
        for node in range(best, best_end):
            if picked < wanted:
                s.nodes[picked].pick_node = node
                picked += 1
            s.nodes[node].fill = -1


@inner
def pick_several(s: State, job: int, at_time: Index, until: float, fit: int) -> int:
    """K nodes, each with the same need; k, or 0 when there are not so many."""
    wanted = s.jobs[job].least
    unit = unit_of(s, job)
    found, largest = 0, 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        node = s.pool_nodes[at]
        if can_take(s, job, node, at_time, until):
            s.nodes[found].candidate = node
            s.nodes[found].candidate_units = s.amount[at_time, node, unit]
            largest = max(largest, s.amount[at_time, node, unit])
            found += 1
    if found < wanted:
        return 0
    picked = 0
    if fit == SLURM:
        pick_from_runs(s, at_time, found, wanted)
    else:
        # Counting sort: units are small numbers, and nodes of equal units stay in order.
        for units in range(largest + 1):
            s.tally[units] = 0
        for at in range(found):
            s.tally[s.nodes[at].candidate_units] += 1
        for step in range(largest + 1):
            units = step if fit == BEST else largest - step
            if s.tally[units] == 0:
                continue
            for at in range(found):
                if s.nodes[at].candidate_units == units:
                    s.nodes[picked].pick_node = s.nodes[at].candidate
                    picked += 1
                    if picked == wanted:
                        break
            if picked == wanted:
                break
    for at in range(wanted):
        pick_need(s, job, at)
    return wanted


@inner
def share(total: int, part: int, whole: int) -> int:
    """What `part` of `whole` units carry of a total, rounded up."""
    return (total * part + whole - 1) // whole


@inner
def pick_in_all(s: State, job: int, at_time: Index, until: float, fit: int) -> int:
    """As few nodes as possible that together have the units of a request in all; their number, or 0."""
    unit = unit_of(s, job)
    total = s.need[job, unit]
    found, together = 0, 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        node = s.pool_nodes[at]
        if not open_to(s, job, node, at_time, until):
            continue
        # CPUs and memory go with the units, rounded up: the most units for which all are there.
        units = total
        for d in range(DIMENSIONS):
            have = available(s, at_time, node, d, until)
            if d == DISK:
                units = units if have >= s.need[job, d] else 0
            elif s.need[job, d] > 0:
                units = min(units, have * total // s.need[job, d])
        if units > 0:
            s.nodes[found].candidate = node
            s.nodes[found].candidate_units = units
            found += 1
            together += units
    least = max(s.jobs[job].least, 1)
    if together < total or found < least:
        return 0
    if fit == SLURM and least == 1:
        able = 0
        for at in range(found):
            if s.nodes[at].candidate_units >= total:
                s.nodes[able].candidate = s.nodes[at].candidate
                able += 1
        if able > 0:
            pick_from_runs(s, at_time, able, 1)
            pick_need(s, job, 0)
            return 1
    picked, left = 0, total
    while left > 0:
        still = max(least - picked - 1, 0)  # nodes that must get at least one unit after this one
        want = left - still
        chosen = -1
        for at in range(found):
            units = s.nodes[at].candidate_units
            if units <= 0:
                continue
            if chosen < 0:
                chosen = at
                continue
            held = s.nodes[chosen].candidate_units
            if held >= want and units >= want and fit != SLURM:
                # Any of them finishes the job: the rule of fit decides, by what is free there.
                a, b = (
                    s.amount[at_time, s.nodes[at].candidate, unit],
                    s.amount[at_time, s.nodes[chosen].candidate, unit],
                )
                if (a < b and fit == BEST) or (a > b and fit == WORST):
                    chosen = at
            elif units > held:
                chosen = at
        if chosen < 0 or picked == s.jobs[job].most_nodes:
            return 0
        take = min(s.nodes[chosen].candidate_units, want)
        node = s.nodes[chosen].candidate
        s.nodes[chosen].candidate_units = 0
        s.nodes[picked].pick_node = node
        if s.jobs[job].alone == WHOLE:
            for d in range(DIMENSIONS):
                s.pick[picked, d] = s.amount[ROOM, node, d]
        else:
            for d in range(DIMENSIONS - 1):
                s.pick[picked, d] = share(s.need[job, d], take, total)
            s.pick[picked, 3] = s.need[job, 3]
        picked += 1
        left -= take
    return picked


@inner
def choose(s: State, job: int, at_time: Index, until: float, fit: int) -> int:
    """Nodes for a job: how many, 0 when it does not fit; which and what of each in `pick_node` and `pick`."""
    if s.jobs[job].form == IN_ALL:
        return pick_in_all(s, job, at_time, until, fit)
    if s.jobs[job].least == 1 and fit != SLURM:
        return pick_one(s, job, at_time, until, fit)
    return pick_several(s, job, at_time, until, fit)


@inner
def rate(s: State, c: Setup, job: int) -> float:
    """Speed of a running job among its co-tenants."""
    slowest = 1.0
    for at in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
        node = s.given_node[at]
        gpus = s.amount[ROOM, node, GPU]
        if gpus > 0:
            others = gpus - s.amount[NOW_FREE, node, GPU] - s.given[at, GPU]
            slowest = min(slowest, 1.0 / (1.0 + c.contention * others / gpus))
    return slowest


@inner
def set_ends(s: State, c: Setup) -> None:
    """Ends of all running jobs under contention, after somebody started or ended; the heap is made anew."""
    now = s.clock[NOW]
    s.counts[HEAP] = 0
    for at in range(s.counts[HOLDING]):
        job = s.holding[at]
        if s.jobs[job].end > now or s.jobs[job].as_of == now:
            s.jobs[job].work_left = max(0.0, s.jobs[job].work_left - s.jobs[job].speed * (now - s.jobs[job].as_of))
            s.jobs[job].as_of = now
            s.jobs[job].speed = rate(s, c, job)
            s.jobs[job].end = min(now + s.jobs[job].work_left / s.jobs[job].speed, killed_at(s, c, job))
        push_end(s, s.jobs[job].end + c.turnover, job)


@inner
def run_there(s: State, job: int) -> float:
    """Seconds of work on the nodes that a job has got: the slowest of its GPUs counts."""
    run = s.jobs[job].run
    if len(s.rates) == 0:
        return run
    spread = 1 if s.jobs[job].on > s.jobs[job].fewest else 0
    slowest = np.inf
    for at in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
        gpu_type = s.nodes[s.given_node[at]].gpu_type
        if gpu_type >= 0:
            slowest = min(slowest, s.rates[job, spread, gpu_type])
    return run / slowest if slowest < np.inf else run


@inner
def begin(s: State, c: Setup, job: int, nodes: int, backfilled: bool) -> None:
    """Start a job on the nodes that `choose` has found."""
    now = s.clock[NOW]
    at = s.jobs[job].slot
    for k in range(nodes):
        node = s.nodes[k].pick_node
        s.given_node[at + k] = node
        s.jobs_on[NOW_FREE, node] += 1
        if s.jobs[job].alone != SHARED:
            s.closed[NOW_FREE, node] = True
        for d in range(DIMENSIONS):
            s.given[at + k, d] = s.pick[k, d]
            s.amount[NOW_FREE, node, d] -= s.pick[k, d]
    s.jobs[job].on = nodes
    s.jobs[job].fate = RUNNING
    s.jobs[job].start = now
    s.jobs[job].backfilled = backfilled
    s.jobs[job].ends_by = now + s.jobs[job].limit
    run = run_there(s, job)
    s.jobs[job].end = min(now + c.launch + run, killed_at(s, c, job))
    s.jobs[job].work_left, s.jobs[job].speed, s.jobs[job].as_of = c.launch + run, 1.0, now
    hold_until(s, job)
    if c.contention > 0.0:
        set_ends(s, c)
    else:
        push_end(s, s.jobs[job].end + c.turnover, job)


@inner
def give_back(s: State, job: int, at_time: Index) -> None:
    """Return what a job holds."""
    for at in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
        node = s.given_node[at]
        s.jobs_on[at_time, node] -= 1
        if s.jobs[job].alone != SHARED:
            s.closed[at_time, node] = False
        for d in range(DIMENSIONS):
            s.amount[at_time, node, d] += s.given[at, d]


@entry_point
def finish(s: State, c: Setup, job: int) -> None:
    """A running job ends."""
    give_back(s, job, NOW_FREE)
    let_go(s, job)
    killed = s.jobs[job].start + c.launch + run_there(s, job) > killed_at(s, c, job)
    if c.contention > 0.0:
        work_left = s.jobs[job].work_left - s.jobs[job].speed * (s.jobs[job].end - s.jobs[job].as_of)
        killed = s.jobs[job].end >= killed_at(s, c, job) and work_left > UNFINISHED
        set_ends(s, c)
    s.jobs[job].fate = TIMEOUT if killed else COMPLETED


@inner
def look_at_pool(s: State, pool: int) -> None:
    """Compute two bounds for a pool, with which most jobs are refused without a look at the nodes."""
    most, total, most_beyond, total_beyond = 0, 0, 0, 0
    first, last = np.inf, -np.inf
    for at in range(s.pool_ptr[pool], s.pool_ptr[pool + 1]):
        node = s.pool_nodes[at]
        if s.closed[NOW_FREE, node] or not s.nodes[node].usable:
            continue
        gpus = s.amount[NOW_FREE, node, GPU]
        most = max(most, gpus)
        total += gpus
        if s.nodes[node].shadow < np.inf:
            first, last = min(first, s.nodes[node].shadow), max(last, s.nodes[node].shadow)
            gpus = max(min(gpus, s.amount[BEYOND, node, GPU]), 0)  # less than nothing where two heads overlap
        most_beyond = max(most_beyond, gpus)
        total_beyond += gpus
    s.most[pool, 0], s.most[pool, 1] = most, total
    s.most[pool, 2], s.most[pool, 3] = most_beyond, total_beyond
    s.shadow_range[pool, 0], s.shadow_range[pool, 1] = first, last
    s.known[pool] = True


@inner
def may_fit(s: State, job: int, until: float) -> bool:
    """False: the pool has no room for the job. True: it may have."""
    gpus = s.need[job, GPU]
    if gpus == 0:
        return True
    pool = s.jobs[job].pool
    if not s.known[pool]:
        look_at_pool(s, pool)
    past = 2 if until > s.shadow_range[pool, 1] and s.shadow_range[pool, 1] > -np.inf else 0
    if s.jobs[job].form == PER_NODE:
        return gpus <= s.most[pool, past] and gpus * s.jobs[job].least <= s.most[pool, past + 1]
    return gpus <= s.most[pool, past + 1]


@inner
def submit(s: State) -> bool:
    """Jobs whose time has come join the queue; whether there were any."""
    now, n = s.clock[NOW], len(s.jobs)
    submitted = False
    while s.counts[NEXT] < n and s.jobs[s.counts[NEXT]].submit <= now:
        job = s.counts[NEXT]
        s.counts[NEXT] = job + 1
        if s.jobs[job].fate == WAITING:
            s.jobs[job].key = np.inf
            s.counts[UNRANKED] += 1
            enqueue(s, job)
            submitted = True
    return submitted


@inner
def rank_fixed(s: State) -> bool:
    """Give the jobs that no refresh has seen their fixed key, and their place by it. Returns whether any moved."""
    n, fresh, stay, moved = s.counts[QUEUED], 0, 0, False
    s.counts[UNRANKED] = 0
    for at in range(n):
        job = s.queue[at]
        if s.jobs[job].key == np.inf:
            s.fresh[fresh] = job
            fresh += 1
            s.jobs[job].key = s.jobs[job].fixed
        moved = moved or (at > 0 and before(s, job, s.queue[at - 1]))
    if not moved:
        return False
    fresh_left = 0
    for at in range(n):
        if fresh_left < fresh and s.queue[at] == s.fresh[fresh_left]:
            fresh_left += 1
        else:
            s.queue[stay] = s.queue[at]
            stay += 1
    s.counts[QUEUED] = stay
    for at in range(fresh):
        enqueue(s, s.fresh[at])
    return True


@inner
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


@inner
def planned(s: State, node: int, since: float, until: float) -> bool:
    """Whether a job has planned the node for some of that time, its last moment included."""
    for k in range(s.nodes[node].plans):
        if s.plan_start[node, k] <= until and s.plan_end[node, k] > since:
            return True
    return False


@inner
def keep_planned(s: State, job: int, since: float) -> float:
    """Keep the job off the nodes of its partition that have a plan before its limit. Returns the plans' first end."""
    until = since + s.jobs[job].limit
    later = np.inf
    for at in range(s.part_ptr[s.jobs[job].partition], s.part_ptr[s.jobs[job].partition + 1]):
        node = s.part_nodes[at]
        s.nodes[node].kept = planned(s, node, since, until)
        if s.nodes[node].kept and s.nodes[node].usable:
            for k in range(s.nodes[node].plans):
                if s.plan_start[node, k] <= until and s.plan_end[node, k] > since:
                    later = min(later, s.plan_end[node, k])
    return later


@inner
def first_gap(s: State, job: int, since: float) -> float:
    """For a job of one node: the first time from which a node that could hold it, were it empty, has no plan.

    Going from end to end of the plans on the pool gives the same time, but looks at what is free each time.
    """
    first = np.inf
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        node = s.pool_nodes[at]
        able = s.nodes[node].usable
        for d in range(DIMENSIONS):
            able = able and s.amount[ROOM, node, d] >= s.need[job, d]
        if not able:
            continue
        time, moved = since, True
        while moved and time < first:
            moved = False
            for k in range(s.nodes[node].plans):
                if s.plan_start[node, k] <= time + s.jobs[job].limit and s.plan_end[node, k] > time:
                    time, moved = s.plan_end[node, k], True
        first = min(first, time)
    return first


@inner
def is_on(s: State, job: int) -> bool:
    """Whether a running job holds any of the marked nodes."""
    for at in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
        if s.nodes[s.given_node[at]].marked:
            return True
    return False


@inner
def start_over(s: State, job: int, mode: Index) -> int:
    """Set the resources from which `expected` goes on to what is free now. Returns the units that the pool has free."""
    unit = unit_of(s, job)
    for node in range(len(s.nodes)):
        s.nodes[node].marked = False
        s.jobs_on[LATER_FREE, node] = s.jobs_on[NOW_FREE, node]
        s.closed[LATER_FREE, node] = s.closed[NOW_FREE, node]
        # EASY: what another partition's head was promised stays promised.
        promised = mode == EASY_BACKFILL and s.nodes[node].shadow < np.inf
        if mode == EASY_BACKFILL:
            s.nodes[node].kept = promised and s.jobs[job].alone != SHARED
        for d in range(DIMENSIONS):
            free = s.amount[NOW_FREE, node, d]
            s.amount[LATER_FREE, node, d] = free - s.amount[PROMISED, node, d] if promised else free
    # sched/backfill looks at the whole partition, also at nodes that cannot take this job.
    for at in range(s.part_ptr[s.jobs[job].partition], s.part_ptr[s.jobs[job].partition + 1]):
        node = s.part_nodes[at]
        s.nodes[node].marked = s.nodes[node].usable and not s.nodes[node].kept
    have = 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        have += s.amount[NOW_FREE, s.pool_nodes[at], unit]
    return have


@inner
def expected(s: State, c: Setup, job: int, mode: Index) -> tuple[float, int]:
    """When the job fits if running jobs go on to their limits, and on how many nodes (in `pick_node`); 0: never.

    EASY goes from limit to limit, as soon as the pool has the units at all. sched/backfill also looks at what is free
    now. Then it takes running jobs away in groups of near ends, and expects the job to start when the last of a group
    has ended. That a group may reach beyond its window is a defect of slurmctld itself (docs/simulator.md).
    """
    unit = unit_of(s, job)
    wanted = s.need[job, unit] * (s.jobs[job].least if s.jobs[job].form == PER_NODE else 1)
    have = start_over(s, job, mode)
    easy = mode == EASY_BACKFILL
    n, at = s.counts[HOLDING], 0
    while n > 0 and s.jobs[s.holding[n - 1]].ends_by == np.inf:
        n -= 1
    time, look = np.floor(s.clock[NOW]), not easy
    first, window = np.inf, GROUP
    while True:
        if look:
            nodes = choose(s, job, LATER_FREE, -np.inf, c.fit)
            if nodes > 0:
                return time, nodes
        if at == n:
            return np.inf, 0
        if easy:
            time = s.jobs[s.holding[at]].ends_by
            while at < n and s.jobs[s.holding[at]].ends_by == time:
                other = s.holding[at]
                at += 1
                give_back(s, other, LATER_FREE)
                for k in range(s.jobs[other].slot, s.jobs[other].slot + s.jobs[other].on):
                    have += s.given[k, unit]
            look = have >= wanted
            continue
        if first < np.inf:
            window *= 2.0
            while np.floor(s.jobs[s.holding[at]].ends_by) > first + window:
                window *= 2.0
        time = -np.inf
        while at < n:
            other = s.holding[at]
            at += 1
            if not is_on(s, other):
                continue
            give_back(s, other, LATER_FREE)
            time = np.floor(s.jobs[other].ends_by)
            if first == np.inf:
                first = (np.floor(time / GROUP) + 1) * GROUP
            if at < n and np.floor(s.jobs[s.holding[at]].ends_by) > first + window:
                break
        if time == -np.inf:
            return np.inf, 0


@inner
def whole_steps(time: float, step: float) -> float:
    """`time` rounded down to a multiple of `step`; as it is when the step is 0 or it is infinite."""
    return np.floor(time / step) * step if step > 0.0 and time < np.inf else time


@inner
def look_ahead(s: State, c: Setup, job: int, mode: Index) -> None:
    """Reserve for a job that cannot start now, where it is expected to start first.

    EASY: what it needs of its nodes. sched/backfill: whole nodes, if within `bf_window` and free of earlier plans.
    """
    since = np.floor(s.clock[NOW])
    latest = since + c.bf_window
    while mode == EASY_BACKFILL or (since <= latest and since < np.inf):
        later = np.inf
        if mode == SLURM_BACKFILL:
            if s.jobs[job].form == PER_NODE and s.jobs[job].least == 1:
                since = first_gap(s, job, since)
                if since > latest:
                    return
            later = keep_planned(s, job, since)
        time, nodes = expected(s, c, job, mode)
        if mode == EASY_BACKFILL:
            if nodes > 0:
                reserve(s, job, nodes, time)
                s.known[:] = False
            for node in range(len(s.nodes)):
                s.nodes[node].kept = False
            return
        start = max(time, since)
        if nodes == 0 or later < start:
            since = later
            continue
        if start > latest:
            return
        until = start + s.jobs[job].limit
        clear = True
        for k in range(nodes):
            clear = clear and not planned(s, s.nodes[k].pick_node, start, until)
        if clear:
            for k in range(nodes):
                node = s.nodes[k].pick_node
                place = s.nodes[node].plans
                s.plan_start[node, place] = whole_steps(start, c.bf_resolution)
                s.plan_end[node, place] = whole_steps(until, c.bf_resolution)
                s.nodes[node].plans += 1
            return
        since = start


@inner
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
                keep_planned(s, job, np.floor(now))
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
            continue
        s.queue[stay] = job
        stay += 1
        if main and looked:
            open_partitions -= 1
            if partitions > 1:
                for k in range(s.part_ptr[p], s.part_ptr[p + 1]):
                    s.nodes[s.part_nodes[k]].kept = True
        elif mode == SLURM_BACKFILL or (mode == EASY_BACKFILL and not s.blocked[p]):
            look_ahead(s, c, job, mode)
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


@entry_point
def advance(s: State, c: Setup, ranking: Ranking, until: float) -> int:
    """Move to the time `until` (seconds), events at it included, or to the end of all work.

    Returns:
        `DONE`; or `REFRESH`: the caller is to rank the queue now, and then to call again.
    """
    jobs = len(s.jobs)
    while True:
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
            # Where nothing runs and nothing is to come, a waiting job cannot start until somebody changes something.
            s.clock[REFRESH_DUE] = next_multiple(max(s.clock[LAST_REFRESH] + c.stale, now), c.refresh)
