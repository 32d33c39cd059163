"""The compiled part of `episodes`: features, network and sample of an order at each refresh, without Python in between.

The columns are those of `decide.see`, computed from the kernel's arrays instead of a snapshot. What never changes
of a job is computed beforehand, in NumPy (`Facts`). tests/unit/simulate/test_episodes.py compares the two row by row.

Nothing is allocated here. Numba's cache looks at the file of a function and does not see that another file of compiled
code has changed: `_STAMP` makes it compile `roll_out` anew when `kernel` changes.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.core.tables import Bools, Floats
from rltuned.decide.see.features import RUN_TIME_HORIZON
from rltuned.decide.see.observation import HEAD_SHARE, STATE_COLUMNS, WINDOW
from rltuned.decide.see.supply import CENTURY
from rltuned.simulate import backfill_kernel, loop_kernel
from rltuned.simulate import kernel as k
from rltuned.simulate.kernel import entry_point, inner

Array = npt.NDArray[Any]

FINISHED: Final = 0
FULL: Final = 1
"""The tape has no room for the refresh that is due."""

DEMAND_SUPPLY: Final = STATE_COLUMNS.index("demand_supply_ratio")
FUTURE: Final = STATE_COLUMNS.index("future_availability")
CAN_NOW: Final = STATE_COLUMNS.index("can_schedule_now")
TIME: Final = STATE_COLUMNS.index("requested_time")
TO_FREE: Final = STATE_COLUMNS.index("time_to_free")
URGENCY: Final = STATE_COLUMNS.index("job_urgency")
COLUMNS: Final = len(STATE_COLUMNS)
HEAD: Final = int(WINDOW * HEAD_SHARE)

TIME_SCALE: Final = float(np.log1p(RUN_TIME_HORIZON))
URGENCY_SCALE: Final = float(np.log1p(RUN_TIME_HORIZON / 10.0))
JOBS_SCALE: Final = float(np.log1p(WINDOW))
BACKLOG_SCALE: Final = float(np.log1p(RUN_TIME_HORIZON / 3600.0))

ONE: Final = np.float32(1.0)
ROUNDING: Final = np.float32(1e-3)
MIB: Final = 2

REACH: Final = 50.0
"""How far the best score that is left may fall, in natural logarithms, before the weights are computed anew relative to
it. exp(−50) still has all its digits."""

BY_NETWORK: Final = k.Ranking(fixed=False, ages=True, at_once=False)

KIND: Final = np.dtype(
    [
        ("pool", "i8"),
        ("wanted", "i8"),  # nodes
        ("gpus", "i8"),  # of one of them, as all below
        ("cpus", "i8"),
        ("mem", "f4"),
        ("tmp", "f4"),
        ("alone", "?"),  # wants idle nodes
        ("divisible", "?"),  # Slurm may split its GPUs over nodes
        ("in_all", "f4"),  # GPUs of a job that is divisible
        ("per_cpu", "f4"),  # how many of them go with one CPU
        ("per_mib", "f4"),
    ]
)
"""A distinct request, as `see.features.num_ways` reads it."""


class Facts(NamedTuple):
    """What never changes in a window. N jobs, M nodes, L pools, U kinds of requests."""

    state: Array
    """(N, 8) float32 `STATE_COLUMNS` where they depend on the job alone, else 0."""
    gpus: Floats  # (N,) g
    run_time: Floats  # (N,) r
    estimate: Floats
    """(N,) what r is before the limit cuts it: running jobs are expected to end by it."""
    kind_of: Array  # (N,) row of `kinds`
    kinds: Array  # (U,) `KIND`
    member: Bools  # (L, M) usable nodes of each pool
    pool_gpus: Floats  # (L,) configured GPUs, at least 1
    mem: Floats  # (M,) MiB of an empty node
    tmp: Array  # (M,) float32 MiB of disk of an empty node
    cluster_gpus: float  # of all nodes, at least 1
    tiers: Array  # distinct partition tiers, the highest first


class Net(NamedTuple):
    """An `Actor`."""

    constant: Floats  # (8,)
    kernel: Floats  # (14, hidden units)
    bias: Floats
    change: Floats  # (hidden units, 8)
    objective: Floats  # (4,)
    expected: Floats  # (N,) T, the run times that are expected
    requested_time: Array  # (N,) float32, the column of T


class Work(NamedTuple):
    """Working memory, some of it kept from refresh to refresh."""

    state: Array
    """(256, 8) float32, row by row as `observe` has them."""
    shown: Array  # (256,) job of each row
    is_shown: Bools  # (N,) cleared after use
    waiting: Array
    """(N,) the queue; in order of submission where not all of it is shown."""
    queue: Array  # (N,) the new queue
    first: Array  # (1,) no job before this one waits
    moment: Floats  # (14,)
    coefficients: Floats  # (8,)
    score: Floats  # (256,)
    chance: Floats
    """(256,) in proportion to the probability of being drawn next; 0 when taken."""
    order: Array  # (256,) rows, the first to go first
    ranked: Array  # (256,) rows by score
    taken: Bools  # (256,)
    running: Array  # (N,) running jobs by expected end
    ends: Floats  # (N,) these ends
    listed: Bools  # (N,) jobs that are or were in `running`
    running_count: Array  # (1,)
    released: Floats
    """(N+1,) GPUs that the first e of them give back to the pool that is looked at."""
    possible: Array
    """(U,) −1 not looked at in this refresh, else whether such a job could start now."""
    random: Array  # (1,) uint64, the generator's state


class Tape(NamedTuple):
    """What is recorded; arrays that are longer than what is on them. Of length 0: nothing is recorded."""

    state: Array
    moment: Array  # (steps, 14)
    score: Floats
    job: Array
    ptr: Array
    picks: Array  # (steps, heads)
    logp: Floats
    time: Floats
    length: Array  # steps, rows


@inner
def uniform(random: Array) -> float:
    """In (0, 1), the ends left out. SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): its state is one number."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (float(z >> np.uint64(12)) + 0.5) / 4503599627370496.0


@inner
def could_start(s: k.State, f: Facts, kind: int) -> bool:
    """Whether `see.features.num_ways` would count any way to place such a job now."""
    wanted, found, together = f.kinds[kind].wanted, 0, np.float32(0.0)
    pool = f.kinds[kind].pool
    for at in range(s.pool_ptr[pool], s.pool_ptr[pool + 1]):
        node = s.pool_nodes[at]
        cpus = s.amount[k.NOW_FREE, node, k.CPU]
        if cpus <= 0 or not s.nodes[node].usable:
            continue
        gpus = s.amount[k.NOW_FREE, node, k.GPU]
        used = s.amount[k.ROOM, node, MIB] - s.amount[k.NOW_FREE, node, MIB]
        if f.kinds[kind].alone and (
            used > 0 or cpus < s.amount[k.ROOM, node, k.CPU] or gpus < s.amount[k.ROOM, node, k.GPU]
        ):
            continue
        mem = np.float32(max(f.mem[node] - used, 0.0))
        if (
            gpus >= f.kinds[kind].gpus
            and cpus >= f.kinds[kind].cpus
            and mem >= f.kinds[kind].mem
            and f.tmp[node] >= f.kinds[kind].tmp
        ):
            found += 1
            if found >= wanted:
                return True
        if f.kinds[kind].divisible:
            enough = min(np.float32(cpus) * f.kinds[kind].per_cpu, mem * f.kinds[kind].per_mib) + ROUNDING
            units = min(np.float32(gpus), np.float32(np.floor(enough)))
            together += max(min(units, f.kinds[kind].in_all - ONE), np.float32(0.0))
            if together >= f.kinds[kind].in_all:
                return True
    return False


@inner
def sort_ends(s: k.State, f: Facts, w: Work) -> int:
    """Sort the running jobs by expected end (`see.supply.expected_ends`); nearly sorted already. Returns how many."""
    now, n = s.clock[k.NOW], 0
    for at in range(w.running_count[0]):
        job = w.running[at]
        if s.jobs[job].fate == k.RUNNING:
            w.running[n] = job
            n += 1
    for at in range(s.counts[k.HOLDING]):
        job = s.holding[at]
        if not w.listed[job]:
            w.listed[job] = True
            w.running[n] = job
            n += 1
    w.running_count[0] = n
    for at in range(n):
        job = w.running[at]
        elapsed = min(max(now - s.jobs[job].start, 0.0), CENTURY)
        left = f.estimate[job] - elapsed
        if left <= 0.0:
            left = elapsed
        end = min(now + left, s.jobs[job].ends_by)
        to = at
        while to > 0 and w.ends[to - 1] > end:
            w.ends[to], w.running[to] = w.ends[to - 1], w.running[to - 1]
            to -= 1
        w.ends[to], w.running[to] = end, job
    return n


@inner
def supply_of(s: k.State, f: Facts, w: Work, pool: int, running: int) -> float:
    """Free GPUs of a pool. What it gets back, end by end, is written to `released`."""
    free = 0.0
    for at in range(s.pool_ptr[pool], s.pool_ptr[pool + 1]):
        node = s.pool_nodes[at]
        if s.nodes[node].usable:
            free += s.amount[k.NOW_FREE, node, k.GPU]
    w.released[0] = 0.0
    for at in range(running):
        job = w.running[at]
        back = 0.0
        for place in range(s.jobs[job].slot, s.jobs[job].slot + s.jobs[job].on):
            if f.member[pool, s.given_node[place]]:
                back += s.given[place, k.GPU] if s.jobs[job].alone == k.WHOLE else f.gpus[job] / s.jobs[job].on
        w.released[at + 1] = w.released[at] + back
    return free


@inner
def time_to_free(w: Work, missing: float, running: int, now: float) -> float:
    """Seconds until `released` gives the pool the GPUs that it lacks, as `decide.see.features.time_to_free` has it."""
    low, high = 0, running + 1
    while low < high:
        middle = (low + high) // 2
        if w.released[middle] >= missing - 1e-6:
            high = middle
        else:
            low = middle + 1
    if low == 0:
        return 0.0
    if low > running:
        return RUN_TIME_HORIZON
    return float(min(max(w.ends[low - 1] - now, 0.0), RUN_TIME_HORIZON))


@inner
def observe(s: k.State, f: Facts, net: Net, w: Work, shown: int) -> None:
    """Terms (`Actor.terms`) of the jobs in `shown`."""
    now = s.clock[k.NOW]
    running = sort_ends(s, f, w)
    w.possible[:] = -1
    done = 0
    for row in range(shown):
        w.taken[row] = False
    # Pool by pool: what a pool gets back is one list, whatever the number of its jobs.
    for leader in range(shown):
        if w.taken[leader]:
            continue
        pool = s.jobs[w.shown[leader]].pool
        free, total = supply_of(s, f, w, pool, running), f.pool_gpus[pool]
        for row in range(leader, shown):
            job = w.shown[row]
            if s.jobs[job].pool != pool:
                continue
            w.taken[row] = True
            done += 1
            gpus, run_time = f.gpus[job], f.run_time[job]
            wait = min(max(now - s.jobs[job].submit, 0.0), CENTURY)
            ended = backfill_kernel.first_after(w.ends, running, now + run_time)
            future = (free + w.released[ended] - gpus) / total
            ratio = gpus / max(free, 0.5)
            kind = f.kind_of[job]
            if w.possible[kind] < 0:
                w.possible[kind] = could_start(s, f, kind)
            for column in range(COLUMNS):
                w.state[row, column] = f.state[job, column]
            w.state[row, DEMAND_SUPPLY] = ratio / (1.0 + ratio)
            w.state[row, FUTURE] = min(np.float32(max(future + 1.0, 0.0) / 2.0), ONE)
            w.state[row, CAN_NOW] = np.float32(w.possible[kind])
            w.state[row, TO_FREE] = np.float32(np.log1p(time_to_free(w, gpus - free, running, now)) / TIME_SCALE)
            w.state[row, TIME] = net.requested_time[job]
            urgency = np.float32(np.log1p(wait / max(net.expected[job], 10.0)) / URGENCY_SCALE)
            w.state[row, URGENCY] = min(urgency, ONE)
        if done == shown:
            break


@inner
def score(f: Facts, net: Net, w: Work, shown: int) -> None:
    """Moment, coefficients and scores of the rows of `state`, as `Actor` computes them."""
    backlog = 0.0
    w.moment[:] = 0.0
    for row in range(shown):
        job = w.shown[row]
        backlog += net.expected[job] * max(f.gpus[job], 1.0)
        for column in range(COLUMNS):
            w.moment[column] += w.state[row, column]
    for column in range(COLUMNS):
        w.moment[column] /= shown
    w.moment[COLUMNS] = np.log1p(float(shown)) / JOBS_SCALE
    w.moment[COLUMNS + 1] = np.log1p(backlog / (3600.0 * f.cluster_gpus)) / BACKLOG_SCALE
    for at in range(len(net.objective)):
        w.moment[COLUMNS + 2 + at] = net.objective[at]
    for column in range(COLUMNS):
        w.coefficients[column] = net.constant[column]
    for unit in range(len(net.bias)):
        value = net.bias[unit]
        for at in range(len(w.moment)):
            value += w.moment[at] * net.kernel[at, unit]
        value = np.tanh(value)
        for column in range(COLUMNS):
            w.coefficients[column] += value * net.change[unit, column]
    for row in range(shown):
        total = 0.0
        for column in range(COLUMNS):
            total += w.coefficients[column] * w.state[row, column]
        # Rounded as `Actor.score_rows` does: equal jobs tie.
        w.score[row] = np.rint(total * 1e9) / 1e9


@inner
def sort_by_score(w: Work, shown: int) -> None:
    """Into `ranked`: best score first, ties by submission. The rows are nearly sorted by the last refresh."""
    for row in range(shown):
        to, score, job = row, w.score[row], w.shown[row]
        while to > 0:
            other = w.ranked[to - 1]
            if w.score[other] > score or (w.score[other] == score and w.shown[other] < job):
                break
            w.ranked[to] = other
            to -= 1
        w.ranked[to] = row


@inner
def draw(w: Work, shown: int, temperature: float, heads: int) -> float:
    """`order`: a Plackett-Luce sample of the first `heads` places, the rest by score; log-probability of those places.

    Place by place, one of those that are left, with probabilities ∝ exp(score / temperature): what Gumbel-top-k gives
    (Kool, van Hoof and Welling, ICML 2019), with one random number for a place instead of one for a job.
    """
    for row in range(shown):
        w.taken[row] = False
        w.order[row] = w.ranked[row]
    if temperature <= 0.0:
        return 0.0
    places, logp, top, reference = min(heads, shown), 0.0, 0, np.inf
    for place in range(places):
        while w.taken[w.ranked[top]]:
            top += 1
        best = w.score[w.ranked[top]] / temperature
        if best < reference - REACH:
            reference = best
            for row in range(shown):
                # A job that is taken already may have a far higher score: it does not count, and must not overflow.
                w.chance[row] = 0.0 if w.taken[row] else np.exp(w.score[row] / temperature - reference)
        total = 0.0
        for row in range(shown):
            total += w.chance[row]
        left, chosen = uniform(w.random) * total, w.ranked[top]
        for at in range(top, shown):
            row = w.ranked[at]
            if w.chance[row] > 0.0:
                chosen = row
                left -= w.chance[row]
                if left < 0.0:
                    break
        logp += w.score[chosen] / temperature - reference - np.log(total)
        w.taken[chosen], w.chance[chosen], w.order[place] = True, 0.0, chosen
    place = places
    for at in range(shown):
        if not w.taken[w.ranked[at]]:
            w.order[place] = w.ranked[at]
            place += 1
    return logp


@inner
def area(f: Facts, job: int) -> float:
    """How small a job is, for `show`."""
    return float(f.run_time[job] * max(f.gpus[job], 1.0))


@inner
def show(s: k.State, f: Facts, w: Work) -> int:
    """Choose the jobs that are shown, as `observation.select_window` does: all in queue order, or 256 of them.
    Returns how many.
    """
    n: int = s.counts[k.QUEUED]
    if n <= WINDOW:
        for at in range(n):
            w.shown[at] = s.queue[at]
            w.waiting[at] = s.queue[at]
            w.is_shown[s.queue[at]] = True
        return n
    job = w.first[0]
    while s.jobs[job].fate != k.WAITING:
        job += 1
    w.first[0] = job
    found = 0
    while found < n:
        if s.jobs[job].fate == k.WAITING:
            w.waiting[found] = job
            found += 1
        job += 1
    for at in range(HEAD):
        w.shown[at] = w.waiting[at]
    smallest, count = w.shown[HEAD:], 0
    for place in range(HEAD, n):  # by area
        job = w.waiting[place]
        to = min(count, WINDOW - HEAD - 1)
        if count > to and area(f, job) >= area(f, smallest[to]):
            continue
        while to > 0 and area(f, job) < area(f, smallest[to - 1]):
            smallest[to] = smallest[to - 1]
            to -= 1
        smallest[to] = job
        count = min(count + 1, WINDOW - HEAD)
    for at in range(1, count):  # in the order of the queue
        job, to = smallest[at], at
        while to > 0 and job < smallest[to - 1]:
            smallest[to] = smallest[to - 1]
            to -= 1
        smallest[to] = job
    for at in range(HEAD + count):
        w.is_shown[w.shown[at]] = True
    return HEAD + count


@inner
def put_in_order(s: k.State, c: k.Setup, f: Facts, w: Work, shown: int) -> None:
    """Order the queue by tier. In a tier, shown jobs exchange the places that they have by submission; others keep
    theirs.
    """
    n, place = s.counts[k.QUEUED], 0
    for level in range(len(f.tiers)):
        tier, upcoming = f.tiers[level], 0
        for at in range(n):
            job = w.waiting[at]
            if s.jobs[job].tier != tier:
                continue
            if w.is_shown[job]:
                while s.jobs[w.shown[w.order[upcoming]]].tier != tier:
                    upcoming += 1
                job = w.shown[w.order[upcoming]]
                upcoming += 1
            w.queue[place] = job
            place += 1
    moved = False
    for at in range(n):
        job = w.queue[at]
        moved = moved or s.queue[at] != job
        s.queue[at] = job
        s.jobs[job].key = at
    s.counts[k.UNRANKED] = 0
    for row in range(shown):
        w.is_shown[w.shown[row]] = False
    if moved:
        k.something_changed(s, c)


@inner
def record(s: k.State, w: Work, tape: Tape, shown: int, heads: int, logp: float) -> None:
    """One step onto the tape, which has room for it."""
    step, begin = tape.length[0], tape.length[1]
    for row in range(shown):
        for column in range(COLUMNS):
            tape.state[begin + row, column] = w.state[row, column]
        tape.score[begin + row] = w.score[row]
        tape.job[begin + row] = w.shown[row]
    for place in range(heads):
        tape.picks[step, place] = w.order[place] if place < shown else -1
    for at in range(len(w.moment)):
        tape.moment[step, at] = w.moment[at]
    tape.logp[step] = logp
    tape.time[step] = s.clock[k.NOW]
    tape.ptr[step + 1] = begin + shown
    tape.length[0], tape.length[1] = step + 1, begin + shown


def _roll_out_for(stamp: int) -> Any:
    """`roll_out` for one source text of the simulator (`kernel.source_stamp`)."""

    @entry_point
    def roll_out(
        s: k.State, c: k.Setup, f: Facts, net: Net, w: Work, tape: Tape, temperature: float, heads: int
    ) -> int:
        """From where `s` is to the end. The tape is written unless its length is 0.

        Returns `FINISHED`; or `FULL`: the tape has no room for the refresh that is due. Call again with a longer one.
        """
        recorded = len(tape.time) > 0
        due = stamp < 0 or s.counts[k.REFRESHING] == 1  # `FULL` was returned before; a stamp is never below 0
        while due or loop_kernel.advance(s, c, BY_NETWORK, np.inf) == loop_kernel.REFRESH:
            due = False
            shown = min(s.counts[k.QUEUED], WINDOW)
            if recorded and (tape.length[0] == len(tape.time) or tape.length[1] + shown > len(tape.job)):
                return FULL
            shown = show(s, f, w)
            observe(s, f, net, w, shown)
            score(f, net, w, shown)
            sort_by_score(w, shown)
            logp = draw(w, shown, temperature, heads)
            if recorded:
                record(s, w, tape, shown, heads, logp)
            put_in_order(s, c, f, w, shown)
        return FINISHED

    return roll_out


roll_out: Final = _roll_out_for(k.source_stamp(k, backfill_kernel, loop_kernel))
