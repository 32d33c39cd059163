"""The state of the compiled simulator: its queue, its running jobs, and which nodes a job gets (docs/simulator.md).

Everything that changes is in `State`. `loop_kernel.advance` moves it in time, `backfill_kernel` is its sched/backfill.
Only `rltuned.simulate` imports the three.

A ranking is a number per job (`key`, smaller first). Who computes it is not known here. The keys of a ranking that
never changes are given beforehand (`fixed`). For any other, `advance` returns at each refresh and is called again.

Jobs and nodes are record arrays: a compiled function gets a handful of pointers, not seventy. That makes calls cheap
and compilation short. Nothing is searched for: the queue is always sorted, running jobs are in a heap by end and in a
list by limit (what backfill goes by), free resources are counted per node.
"""

# Numba compiles loops over arrays best: the linter's rules for iterators do not apply here.
# ruff: noqa: C901, SIM110

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt
from numba import njit

from rltuned.core.tables import Floats

Array = npt.NDArray[Any]

Index = int | np.int64
Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(**options: Any) -> Callable[[Function], Function]:
    """Nothing is allocated in compiled code, so nothing needs Numba's reference counts: they took most of the time."""

    def compiled(function: Function) -> Function:
        return cast("Function", njit(**{"_nrt": False, **options})(function))

    return compiled


entry_point: Final = _compiled(cache=True)
"""For a function that Python calls, too."""
inner: Final = _compiled(cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For one that only compiled code calls. Wrappers for Python would be most of what is compiled."""
uncached: Final = _compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""As `inner`, for one that calls functions of another file: Numba's cache would keep them as they were."""
inlined: Final = _compiled(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""As `uncached`, copied into its callers: to hand the whole `State` over in a call costs more than a small loop.

LLVM copies it. Numba's own `inline` is as fast in the end, but then each copy is typed and compiled anew: 61 s and
750 MB instead of 24 s and 380 MB.
"""


def source_stamp(*modules: ModuleType) -> int:
    """Of the compiled functions and the constants of these modules; 0 or above.

    Numba keeps a compiled function as long as its own file does not change. One that calls functions of other files
    closes over their stamp, so that it is compiled anew when they change.
    """
    stamp = 0
    for module in modules:
        for name, value in sorted(vars(module).items()):
            code = getattr(getattr(value, "py_func", None), "__code__", None)
            if code is not None:
                stamp = crc32(code.co_code + repr((name, code.co_consts, code.co_names)).encode(), stamp)
            elif isinstance(value, int | float | np.integer | tuple):
                stamp = crc32(repr((name, value)).encode(), stamp)
    return stamp


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

# Numba compiles a function that is given a literal once more, for the literal: what is passed on is an np.int64.
ZERO: Final = np.int64(0)
ONE: Final = np.int64(1)

BEST: Final = np.int64(0)
WORST: Final = np.int64(1)
SLURM: Final = np.int64(2)

NO_BACKFILL: Final = np.int64(0)
EASY_BACKFILL: Final = np.int64(1)
SLURM_BACKFILL: Final = np.int64(2)

WAITING: Final = 0
RUNNING: Final = 1
COMPLETED: Final = 2
TIMEOUT: Final = 3

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

FULL_PASS: Final = 60.0
"""Seconds, sched_interval of a slurm.conf that says nothing: a main pass at a multiple tries the whole queue."""

SHORTER: Final = (1800.0, 3600.0, 2 * 3600.0, 4 * 3600.0, 8 * 3600.0, 12 * 3600.0, 86_400.0, 3 * 86_400.0)
"""Time limits, seconds, of which EASY notes when a job would start with them (`Setup.shorter`)."""

# Places in `State.clock`.
NOW: Final = 0
BACKFILL_DUE: Final = 1
REFRESH_DUE: Final = 2
LAST_REFRESH: Final = 3
MAIN_DUE: Final = 4

# Places in `State.counts`.
QUEUED: Final = 0
NEXT: Final = 1
HOLDING: Final = 2
"""Running jobs."""
PASSES: Final = 3
REFRESHES: Final = 4
UNRANKED: Final = 5
"""Queued jobs that no refresh has seen."""
REFRESHING: Final = 6
"""1 from `REFRESH` until the next `advance`, which goes on with the same instant."""
LISTED: Final = 7
"""Of sched/backfill: how many running jobs have a limit; -1: `list_releases` has to look."""
KINDS: Final = 8
"""Of sched/backfill: how many kinds of jobs have been looked at since then."""
COUNTS: Final = 9


JOB: Final = np.dtype(
    [
        # As submitted.
        ("submit", "f8"),
        ("run", "f8"),  # seconds on the nodes that it gets
        ("limit", "f8"),
        ("fixed", "f8"),  # key of a ranking that never changes
        ("form", "i8"),  # PER_NODE or IN_ALL
        ("least", "i8"),  # nodes, at least
        ("most_nodes", "i8"),  # nodes, at most; per node it takes as many as have room
        ("pool", "i8"),
        ("partition", "i8"),
        ("tier", "i8"),
        ("alone", "i8"),  # SHARED, ISOLATED or WHOLE
        ("user", "i4"),  # 1 + row of a job that stands for all of the same user; 0: nobody's, it is not counted
        ("peer", "i4"),  # likewise, of the same partition
        ("slot", "i8"),  # where its allocation begins in `given_node` and `given`
        # What has become of it.
        ("key", "f8"),  # infinite while no refresh has seen the job
        ("start", "f8"),
        ("end", "f8"),
        ("ends_by", "f8"),  # start + limit
        ("freed", "f8"),  # when its nodes are free
        ("planned", "f8"),  # start that the last pass of sched/backfill expected; what `squeue --start` shows
        ("fate", "i8"),
        ("backfilled", "i8"),
        ("on", "i8"),  # nodes that it got
        ("of_user", "i4"),  # of the job that stands for them: how many this pass of sched/backfill has looked at
        ("of_peers", "i4"),  # likewise
        # Of a job with a range of nodes.
        ("curve", "i4"),  # 1 + row of `scaling`; 0: it runs equally long wherever it is
        ("fewest", "i4"),  # least nodes as submitted: `work` is the run time on so many
        ("work", "f8"),  # what is left of it
        ("lost", "f8"),  # seconds after a start until it goes on with its work
        # Of `SHORTER`, in the same order.
        ("sooner", "f8", (len(SHORTER),)),  # when it would have started before `start`; infinite: it would not
    ]
)

NODE: Final = np.dtype(
    [
        ("usable", "?"),
        ("weight", "i8"),  # slurm.conf's; smaller ones first
        ("kept", "?"),  # not for the job that is being looked at
        ("shadow", "f8"),  # when the first reservation on it begins
        # Working memory: chosen nodes, candidates.
        ("pick_node", "i8"),
        ("candidate", "i8"),
        ("candidate_units", "i8"),
        ("free_cpus", "i8"),  # of the candidate; -1 when it is taken
        ("marked", "?"),
        ("plans", "i8"),  # of this pass of sched/backfill: how many in `Plans.start` and `Plans.end`
    ]
)

POOL: Final = np.dtype(
    [
        ("known", "?"),  # whether the rest is true now
        ("most", "i8"),  # GPUs of a node
        ("total", "i8"),  # GPUs
        ("most_beyond", "i8"),  # likewise, past the reservations
        ("total_beyond", "i8"),
        ("last", "f8"),  # latest start of the reservations on its nodes; -inf: there are none
    ]
)

KIND: Final = np.dtype(
    [
        ("job", "i8"),  # one of them
        ("limit", "f8"),  # for which `Plans.clear` is true
        ("since", "f8"),  # from when such a job is looked at
        ("before", "f8"),  # one that asks in all has too little before that time, even if nothing were planned
        ("hopeless", "f8"),  # jobs with this limit or a longer one cannot be planned within the window
    ]
)


PARTITION: Final = np.dtype(
    [
        ("planned", "i8"),  # plans of this pass of sched/backfill that are on nodes of the partition
        ("reserved", "i8"),  # jobs of the partition that it has planned
    ]
)


class Plans(NamedTuple):
    """What a pass of sched/backfill has planned, and what it computes only once. Empty for any other backfill.

    Q is the number of jobs that a pass looks at, K that of the kinds that are remembered.
    """

    member: Array  # (P, M) the node belongs to the partition
    start: Floats  # (M, Q) of each node's plans; they do not overlap, and stand in order
    end: Floats  # (M, Q)
    by_end_start: Floats  # (P, Q) start of the plans that are on nodes of the partition, by their end
    by_end: Floats  # (P, Q) likewise, their end
    partitions: Array  # (P,) `PARTITION`
    # What running jobs give back when they reach their limits.
    limit_end: Floats  # (J,) second at which each job of `State.holding` does
    release_ptr: Array  # (M+2,) where the releases of each node begin in `release_at`
    release_at: Array  # (slots,) place in `State.holding` of the job that gives back; in order on each node
    release_slot: Array  # (slots,) place in `State.given` of what it gives back
    # Jobs of one kind ask for the same of the same nodes. Only their limits differ.
    kinds: Array  # (K,) `KIND`
    # (K, nodes of a pool) place in `State.holding` of the job whose end makes room; -1: there is; `NEVER`.
    ready: Array
    clear: Floats  # (K, nodes of a pool) not before that time the node has room, and no plan during the job
    earliest: Floats  # (M,) working memory: the smallest of something


class State(NamedTuple):
    """Everything that changes in a simulation. J jobs in order of submission, M nodes, P partitions, L pools.

    With a few arrays more, LLVM passes it in another way, and everything takes up to five times as long: columns of one
    length belong into one record.
    """

    jobs: Array  # (J,) `JOB`
    need: Array  # (J, 4) per node, or in all (disk always per node)
    given_node: Array  # (slots,) nodes that each job has got, from its `slot` on
    given: Array  # (slots, 4) what it has got of them
    queue: Array  # (J,) pending jobs in their order; the first `counts[QUEUED]` count
    fresh: Array  # (J,) working memory: jobs that no refresh has seen
    heap: Array  # (J,) running jobs by `freed`
    holding: Array  # (J,) running jobs by `ends_by`
    nodes: Array  # (M,) `NODE`
    amount: Array  # (5, M, 4)
    jobs_on: Array  # (2, M) number of jobs on the node
    closed: Array  # (2, M) a job that does not share is on the node
    pick: Array  # (M, 4) what is taken of each chosen node
    pool_ptr: Array  # (L+1,) where the nodes of each pool begin in `pool_nodes`; likewise of partitions
    pool_nodes: Array
    part_ptr: Array
    part_nodes: Array
    pools: Array  # (L,) `POOL`
    blocked: Array  # (P,) a job of the partition could not start in this pass
    clock: Floats
    counts: Array
    scaling: Floats  # (C, n) how much longer a job runs on 1, 2 … nodes; on more than n as on n
    plans: Plans


class Ranking(NamedTuple):
    """How the queue is ranked."""

    fixed: bool  # by the `fixed` keys of the jobs: `advance` does not return for it
    ages: bool  # the order may change by time alone
    at_once: bool  # a submission is ranked at once, as slurmctld does, not at the next refresh


class Setup(NamedTuple):
    """What does not change in a simulation."""

    backfill: int
    fit: Index
    sched_interval: float
    default_queue_depth: int
    bf_interval: float
    bf_offset: float
    bf_max_job_test: int
    bf_max_job_user: int
    bf_max_job_part: int
    bf_max_job_start: int
    bf_min_age_reserve: int
    bf_job_part_count_reserve: int
    bf_window: float
    bf_resolution: float
    refresh: float
    stale: float
    turnover: float
    launch: float
    kill_interval: float
    plan_all: bool
    """Whether a pass of sched/backfill goes on behind the last job that may start now, only to say when each of the
    others is expected to (`planned` of a job)."""
    shorter: bool
    """Whether a pass of EASY notes of the jobs that stay with which shorter limits they would have started."""


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


@inlined
def ends_before(s: State, a: int, b: int) -> bool:
    """Whether the nodes of job `a` are free before those of job `b`; of equal ones, the one submitted first."""
    return s.jobs[a].freed < s.jobs[b].freed or (s.jobs[a].freed == s.jobs[b].freed and a < b)


@inner
def push_end(s: State, job: int) -> None:
    """Into the heap of running jobs, of which `hold_until` counts it as one."""
    at = s.counts[HOLDING]
    while at > 0 and ends_before(s, job, s.heap[(at - 1) // 2]):
        s.heap[at] = s.heap[(at - 1) // 2]
        at = (at - 1) // 2
    s.heap[at] = job


@inner
def pop_end(s: State) -> int:
    """The job that ends first, out of the heap; `finish` it."""
    n, first, at = s.counts[HOLDING] - 1, s.heap[0], 0
    job = s.heap[n]
    while 2 * at + 1 < n:
        down = 2 * at + 1
        if down + 1 < n and ends_before(s, s.heap[down + 1], s.heap[down]):
            down += 1
        if ends_before(s, job, s.heap[down]):
            break
        s.heap[at] = s.heap[down]
        at = down
    s.heap[at] = job
    return first


@inner
def hold_until(s: State, job: int) -> None:
    """Into the list of running jobs by the time at which their limit ends them."""
    at = s.counts[HOLDING]
    s.counts[HOLDING] = at + 1
    while at > 0 and s.jobs[s.holding[at - 1]].ends_by > s.jobs[job].ends_by:
        s.holding[at] = s.holding[at - 1]
        at -= 1
    s.holding[at] = job


@inner
def let_go(s: State, job: int) -> None:
    """Out of that list."""
    at = 0
    while s.holding[at] != job:
        at += 1
    s.counts[HOLDING] -= 1
    for place in range(at, s.counts[HOLDING]):
        s.holding[place] = s.holding[place + 1]


@inlined
def unit_of(s: State, job: int) -> int:
    """What the job is counted in: GPUs, or CPUs where it asks for no GPU."""
    return GPU if s.need[job, GPU] > 0 else CPU


@inlined
def available(s: State, at_time: Index, node: int, dimension: int, until: float) -> int:
    """What a job can get of a node until its limit: if that is past a reservation, only what the reservation leaves."""
    amount = s.amount[at_time, node, dimension]
    if until > s.nodes[node].shadow:
        amount = min(amount, s.amount[BEYOND, node, dimension])
    return amount


@inlined
def open_to(s: State, job: int, node: int, at_time: Index, until: float) -> bool:
    """Whether the node takes the job at all, whatever is free on it."""
    if s.nodes[node].kept or s.closed[at_time, node] or not s.nodes[node].usable:
        return False
    return s.jobs[job].alone == SHARED or (s.jobs_on[at_time, node] == 0 and until <= s.nodes[node].shadow)


@inlined
def can_take(s: State, job: int, node: int, at_time: Index, until: float) -> bool:
    """Whether the node takes the job and has what it needs of a node."""
    if not open_to(s, job, node, at_time, until):
        return False
    for d in range(DIMENSIONS):
        if available(s, at_time, node, d, until) < s.need[job, d]:
            return False
    return True


@inner
def pick_need(s: State, job: int, at: Index) -> None:
    """What the job takes of the node that is picked at this place: its need of a node, or the whole node."""
    for d in range(DIMENSIONS):
        s.pick[at, d] = s.amount[ROOM, s.nodes[at].pick_node, d] if s.jobs[job].alone == WHOLE else s.need[job, d]


@inner
def pick_one(s: State, job: int, at_time: Index, until: float, fit: Index) -> int:
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
    pick_need(s, job, ZERO)
    return 1


@inner
def pick_from_runs(s: State, at_time: Index, found: Index, wanted: Index, needed: Index) -> None:
    """select/cons_tres: of the runs of neighbouring candidates with enough nodes, the one with the least free CPUs.
    Enough are as many as `needed`, of a range fewer than `wanted`.

    Those of the smallest weight go first, and are taken whole where they have too few; another weight ends a run. For
    one node: the node of that run with the least free CPUs. For several: the run's first nodes. Where no run has
    enough, the one with the most free CPUs is taken whole, and the search goes on for the rest.
    """
    for at in range(found):
        s.nodes[at].free_cpus = max(s.amount[at_time, s.nodes[at].candidate, CPU], 0)
    picked = 0
    while picked < wanted:
        best, best_end, best_size, best_enough, least = -1, 0, 0, False, 0
        at = 0
        while at < found:
            if s.nodes[at].free_cpus < 0:
                at += 1
                continue
            begin_run, size, weight = at, 0, s.nodes[s.nodes[at].candidate].weight
            while at < found and s.nodes[at].free_cpus >= 0:
                node = s.nodes[at].candidate
                if at > begin_run and (node != s.nodes[at - 1].candidate + 1 or s.nodes[node].weight != weight):
                    break
                size += s.nodes[at].free_cpus
                at += 1
            enough = bool(at - begin_run >= needed - picked)
            if (
                best < 0
                or weight < least
                or (weight == least and enough and (not best_enough or size < best_size))
                or (weight == least and not enough and not best_enough and size > best_size)
            ):
                best, best_end, best_size, best_enough, least = begin_run, at, size, enough, weight
        if wanted == 1:
            for at in range(best + 1, best_end):
                if s.nodes[at].free_cpus < s.nodes[best].free_cpus:
                    best = at
            best_end = best + 1
        for at in range(best, best_end):
            if picked < wanted:
                s.nodes[picked].pick_node = s.nodes[at].candidate
                picked += 1
            s.nodes[at].free_cpus = -1


@inner
def pick_by_units(s: State, found: Index, wanted: Index, fit: Index) -> None:
    """Best or worst fit: the candidates with the least or the most units; of equal ones, the first."""
    for picked in range(wanted):
        best, least = -1, 0
        for at in range(found):
            units = s.nodes[at].candidate_units
            if units >= 0 and (best < 0 or (units < least if fit == BEST else units > least)):
                best, least = at, units
        s.nodes[picked].pick_node = s.nodes[best].candidate
        s.nodes[best].candidate_units = -1


@inner
def pick_several(s: State, job: int, at_time: Index, until: float, fit: Index) -> int:
    """K nodes, each with the same need, as many as the job takes; k, or 0 when there are too few."""
    unit = unit_of(s, job)
    found = ZERO
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        node = s.pool_nodes[at]
        if can_take(s, job, node, at_time, until):
            s.nodes[found].candidate = node
            s.nodes[found].candidate_units = s.amount[at_time, node, unit]
            found += 1
    if found < s.jobs[job].least:
        return 0
    wanted = min(found, s.jobs[job].most_nodes)
    if fit == SLURM:
        pick_from_runs(s, at_time, found, wanted, s.jobs[job].least)
    else:
        pick_by_units(s, found, wanted, fit)
    for at in range(wanted):
        pick_need(s, job, at)
    return wanted


@inner
def units_on(s: State, job: int, node: int, at_time: Index, until: float) -> int:
    """How many of the units of a request in all the node can give; may be below 0."""
    # CPUs and memory go with the units, rounded up: the most units for which all are there.
    total = s.need[job, unit_of(s, job)]
    units = total
    for d in range(DIMENSIONS):
        have = available(s, at_time, node, d, until)
        if d == DISK:
            units = units if have >= s.need[job, d] else 0
        elif s.need[job, d] > 0:
            units = min(units, have * total // s.need[job, d])
    return units


@inner
def pick_in_all(s: State, job: int, at_time: Index, until: float, fit: Index) -> int:
    """As few nodes as possible that together have the units of a request in all; their number, or 0."""
    unit = unit_of(s, job)
    total = s.need[job, unit]
    found, together = 0, 0
    for at in range(s.pool_ptr[s.jobs[job].pool], s.pool_ptr[s.jobs[job].pool + 1]):
        node = s.pool_nodes[at]
        if not open_to(s, job, node, at_time, until):
            continue
        units = units_on(s, job, node, at_time, until)
        if units > 0:
            s.nodes[found].candidate = node
            s.nodes[found].candidate_units = units
            found += 1
            together += units
    least = max(s.jobs[job].least, 1)
    if together < total or found < least:
        return 0
    if fit == SLURM and least == 1:
        able = ZERO
        for at in range(found):
            if s.nodes[at].candidate_units >= total:
                s.nodes[able].candidate = s.nodes[at].candidate
                able += 1
        if able > 0:
            pick_from_runs(s, at_time, able, ONE, ONE)
            pick_need(s, job, ZERO)
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
        s.nodes[picked].pick_node = s.nodes[chosen].candidate
        s.nodes[chosen].candidate_units = 0
        pick_need(s, job, picked)
        if s.jobs[job].alone != WHOLE:
            for d in range(DISK):
                s.pick[picked, d] = (s.need[job, d] * take + total - 1) // total  # rounded up
        picked += 1
        left -= take
    return picked


@inner
def choose(s: State, job: int, at_time: Index, until: float, fit: Index) -> int:
    """Nodes for a job: how many, 0 when it does not fit; which and what of each in `pick_node` and `pick`."""
    if s.jobs[job].form == IN_ALL:
        return pick_in_all(s, job, at_time, until, fit)
    if s.jobs[job].most_nodes == 1 and fit != SLURM:
        return pick_one(s, job, at_time, until, fit)
    return pick_several(s, job, at_time, until, fit)


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
    if s.jobs[job].curve > 0:
        curve, last = s.jobs[job].curve - 1, s.scaling.shape[1] - 1
        factor = s.scaling[curve, min(nodes - 1, last)] / s.scaling[curve, min(s.jobs[job].fewest - 1, last)]
        s.jobs[job].run = s.jobs[job].work * factor + s.jobs[job].lost
    s.jobs[job].end = min(now + c.launch + s.jobs[job].run, killed_at(s, c, job))
    s.jobs[job].freed = s.jobs[job].end + c.turnover
    push_end(s, job)
    hold_until(s, job)


@inlined
def release(s: State, job: int, at: int, at_time: Index) -> None:
    """Return what a running job has of the node in this slot."""
    node = s.given_node[at]
    s.jobs_on[at_time, node] -= 1
    if s.jobs[job].alone != SHARED:
        s.closed[at_time, node] = False
    for d in range(DIMENSIONS):
        s.amount[at_time, node, d] += s.given[at, d]


@inner
def give_back(s: State, job: int, at_time: Index) -> None:
    """Return what a job holds."""
    for at in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
        release(s, job, at, at_time)


@entry_point
def finish(s: State, c: Setup, job: int) -> None:
    """A running job ends."""
    give_back(s, job, NOW_FREE)
    let_go(s, job)
    killed = s.jobs[job].start + c.launch + s.jobs[job].run > killed_at(s, c, job)
    s.jobs[job].fate = TIMEOUT if killed else COMPLETED


@entry_point
def start_again(s: State, c: Setup, job: int, nodes: int, left: float) -> None:
    """A job that was stopped now goes on with the first of the nodes that it had; `left`: of its time limit."""
    at, limit = s.jobs[job].slot, s.jobs[job].limit
    for k in range(nodes):
        s.nodes[k].pick_node = s.given_node[at + k]
        for d in range(DIMENSIONS):
            s.pick[k, d] = s.given[at + k, d]
    s.jobs[job].limit = left
    begin(s, c, job, nodes, bool(s.jobs[job].backfilled))
    s.jobs[job].limit = limit


@inner
def look_at_pool(s: State, pool: int) -> None:
    """Compute two bounds for a pool, with which most jobs are refused without a look at the nodes."""
    most, total, most_beyond, total_beyond = 0, 0, 0, 0
    last = -np.inf
    for at in range(s.pool_ptr[pool], s.pool_ptr[pool + 1]):
        node = s.pool_nodes[at]
        if s.closed[NOW_FREE, node] or not s.nodes[node].usable:
            continue
        gpus = s.amount[NOW_FREE, node, GPU]
        most = max(most, gpus)
        total += gpus
        if s.nodes[node].shadow < np.inf:
            last = max(last, s.nodes[node].shadow)
            gpus = max(min(gpus, s.amount[BEYOND, node, GPU]), 0)  # less than nothing where two heads overlap
        most_beyond = max(most_beyond, gpus)
        total_beyond += gpus
    s.pools[pool].most, s.pools[pool].total = most, total
    s.pools[pool].most_beyond, s.pools[pool].total_beyond = most_beyond, total_beyond
    s.pools[pool].last, s.pools[pool].known = last, True


@inlined
def forget_pools(s: State) -> None:
    """What is free has changed."""
    for pool in range(len(s.pools)):
        s.pools[pool].known = False


@inner
def may_fit(s: State, job: int, until: float) -> bool:
    """False: the pool has no room for the job. True: it may have."""
    gpus = s.need[job, GPU]
    if gpus == 0:
        return True
    pool = s.jobs[job].pool
    if not s.pools[pool].known:
        look_at_pool(s, pool)
    most, total = s.pools[pool].most, s.pools[pool].total
    if until > s.pools[pool].last and s.pools[pool].last > -np.inf:
        most, total = s.pools[pool].most_beyond, s.pools[pool].total_beyond
    if s.jobs[job].form == PER_NODE:
        return gpus <= most and gpus * s.jobs[job].least <= total
    return gpus <= total


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
    while s.counts[NEXT] < n and s.jobs[s.counts[NEXT]].fate != WAITING:  # nothing is to come of a rejected job
        s.counts[NEXT] += 1
    return submitted


@inner
def rank_fixed(s: State) -> bool:
    """Give the jobs that no refresh has seen their fixed key, and their place by it. Returns whether any moved."""
    fresh, stay, moved, previous = 0, 0, False, -1
    s.counts[UNRANKED] = 0
    for at in range(s.counts[QUEUED]):
        job = s.queue[at]
        if s.jobs[job].key == np.inf:
            s.jobs[job].key = s.jobs[job].fixed
            s.fresh[fresh] = job
            fresh += 1
        else:
            s.queue[stay] = job
            stay += 1
        moved = moved or (previous >= 0 and before(s, job, previous))
        previous = job
    s.counts[QUEUED] = stay
    for at in range(fresh):
        enqueue(s, s.fresh[at])
    return moved
