"""The queue played to its end in several orders, with the compiled simulator: which of the first few jobs goes first?

A roll-out policy: the policy's own order is played, then the same order with each of its first `candidates` jobs put in front
of all and behind all. The best play wins. Every play starts from the cluster as it is, runs jobs for their *expected* run
times (where those are uncertain, for several sets drawn around them), backfills on their *limits* as Slurm does, and knows of no job that is still to come
but for the company of a short queue. docs/rollout.md has what it is
worth, measured; docs/decisions/0096 why it is there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.pools import job_pools
from rltuned.cluster.shape import parse_shape
from rltuned.cluster.tables import Bools, Floats, Ints, JobState, JobTable, Snapshot
from rltuned.decide.rollout import MoveTo, RecentJobs, RolloutResult
from rltuned.decide.scope import priority_tiers
from rltuned.observe.supply import exclusive_partitions
from rltuned.policy.heuristics import by_name
from rltuned.simulate import kernel as k
from rltuned.simulate.engine import Simulation, idle_state, setup_of
from rltuned.simulate.rankers import RuleRanker, compile_kernel
from rltuned.simulate.requests import capacity
from rltuned.simulate.values import BOUND, Backfill, Estimates, SimulationSettings
from rltuned.workload.estimates import uniform
from rltuned.workload.jobs import Source, workload

Rows = npt.NDArray[np.intp]

_PLENTY: Final = 2**40
_SLURM: Final = SimulationSettings()
_FRONT: Final = -1.0
_CERTAIN: Final = 0.1
"""Spread up to which expected run times are taken as they are: estimates that are true, but for what is rounded."""
_CLEAR: Final = 0.1
"""Share of the margin that is asked for where run times are certain."""
_RARE: Final = 1e-6
"""Chance below which a run time counts as impossible."""
_SAME: Final = 1.0001
"""A slowdown that is larger by no more than this factor counts as no worse."""
_ALIGNED: Final = 64
"""Bytes: of a cache line, and more than any record of the kernel needs."""
_MOVING: Final = (
    "jobs",
    "need",
    "given_node",
    "given",
    "heap",
    "holding",
    "nodes",
    "amount",
    "jobs_on",
    "closed",
    "clock",
    "counts",
)
"""What a play changes and the next one must find as it was, or what differs between sets; the rest is room to work in, or never changes."""


def in_time() -> bool:
    """There is always time for one more play."""
    return True


class Cost(NamedTuple):
    """Of an order, all jobs together; (sets,) each, one for each set of run times that it was played with."""

    waited: Floats
    """Seconds of waiting from now on."""
    slowed: Floats
    """Bounded slowdowns."""

    def plus(self, other: "Cost") -> "Cost":
        """Of the sets of both."""
        return Cost(np.append(self.waited, other.waited), np.append(self.slowed, other.slowed))


class _Trial(NamedTuple):
    """One job put elsewhere."""

    at: int
    """Place in the queue."""
    move: MoveTo
    cost: Cost


@dataclass(frozen=True)
class OrderSearch:
    """Satisfies `rltuned.decide.rollout.RolloutSearch`."""

    candidates: int = 8
    """Jobs at the head of the policy's order that are tried in front and behind."""
    min_jobs: int = 8
    """Jobs that are played at least. A short queue is filled up with jobs like those that came lately, as if they were to come next: two
    waiting jobs may both gain when the one that takes most of the cluster for a day goes first, and everybody after them loses."""
    depth: int = 64
    """Jobs at the head of that order that are played; those behind them follow whatever is decided here."""
    slowdown: float = 0.25
    """Share of the bounded slowdown in what is compared; the wait has the rest, each as a share of the policy's own order. A
    move that makes either worse is never made: short jobs do not pay for long ones."""
    margin: float = 0.01
    """Least gain, as a share: what is predicted to gain less is noise, and not worth a write. Where run times are certain, there is
    less noise: a tenth of it."""
    samples: int = 6
    """Sets of run times that each order is played with where they are uncertain: an order that is good for the expected ones
    only is good by chance. 1: only the expected ones."""
    finalists: int = 4
    """Orders that are played with all of them; the others with the first half."""
    settings: SimulationSettings = _SLURM
    """Of the Slurm that is played."""
    time_left: Callable[[], bool] = in_time
    """Asked before each play: False ends the rehearsal with the best so far."""

    def search(
        self,
        snapshot: Snapshot,
        rows: Rows,
        scores: Floats,
        run_times: Floats,
        spread: float = 0.0,
        came: RecentJobs | None = None,
    ) -> RolloutResult | None:
        """As the protocol says."""
        theatre = self._theatre(snapshot, rows, scores, run_times, spread, came)
        if theatre is None:
            return None
        half = (theatre.sets + 1) // 2
        own = theatre.play(theatre.order, 0, half)
        tried = [
            _Trial(at, move, theatre.play(theatre.moved(at, move), 0, half))
            for at, move in theatre.moves(self.candidates)
            if self.time_left()
        ]
        if half < theatre.sets and tried:
            own = own.plus(theatre.play(theatre.order, half))
            tried.sort(key=lambda trial: self._share(trial.cost, own))
            tried = [
                trial._replace(cost=trial.cost.plus(theatre.play(theatre.moved(trial.at, trial.move), half)))
                for trial in tried[: self.finalists]
                if self.time_left()
            ]
        margin = self.margin if theatre.sets > 1 else _CLEAR * self.margin
        good = [trial for trial in tried if self._better(trial.cost, own, margin)]
        cost = float(own.waited.mean())
        if not good:
            return RolloutResult(theatre.plays, cost, cost, None, None)
        best = min(good, key=lambda trial: self._share(trial.cost, own))
        moved = int(theatre.queue[best.at])
        behind = theatre.last_beside(best.at) if best.move is MoveTo.LAST else None
        return RolloutResult(theatre.plays, cost, float(best.cost.waited.mean()), moved, best.move, behind)

    def _theatre(
        self, snapshot: Snapshot, rows: Rows, scores: Floats, run_times: Floats, spread: float, came: RecentJobs | None
    ) -> "_Theatre | None":
        """The head of the queue, without jobs that fit nowhere, in the order of the plan; None: no two jobs are left."""
        tiers = priority_tiers(snapshot, rows)
        # By tier, then by score; what the scores cannot tell apart stays in the order of priority.
        order = np.lexsort((snapshot.jobs.job_id[rows], -snapshot.jobs.priority[rows], -scores, -tiers))
        queue = rows[order][: self.depth]
        if len(queue) < 2:
            return None
        # Where jobs may pass each other, one that an endless play does not start fits on no nodes that there are: Slurm reserves
        # nothing for it, and its wait is nobody's merit.
        passing = Backfill.EASY if self.settings.backfill is Backfill.NONE else self.settings.backfill
        state = stage(snapshot, queue, run_times, self.settings)
        look = _Theatre(queue, state, replace(self.settings, backfill=passing), [_cast(state)])
        look.play(look.order)
        if look.stranded.any():
            queue = queue[~look.stranded]
            if len(queue) < 2:
                return None
        certain = spread <= _CERTAIN or self.samples == 1
        wanted = 0 if came is None else min(max(self.min_jobs - len(queue), 0), len(came))
        if certain and not wanted and not look.stranded.any() and passing is self.settings.backfill:
            return look  # it has been built as it is wanted
        if wanted or look.stranded.any():
            state = stage(snapshot, queue, run_times, self.settings, coming=wanted)
        if certain:
            sets = [_cast(state)] * (self.samples if wanted else 1)
        else:
            sets = _turned_out(state, snapshot.jobs, queue, run_times, spread, self.samples)
        if came is not None and wanted:
            jobs = snapshot.jobs
            area = run_times[queue] * _size(jobs.gpus[queue], jobs.cpus[queue])
            sets = _joined(sets, state, came, area)
        theatre = _Theatre(queue, state, self.settings, sets)
        theatre.plays = look.plays
        return theatre

    def _share(self, tried: "Cost", own: "Cost") -> float:
        """What is compared: 1 for the policy's own order."""
        sets = len(tried.waited)  # as far as it has been played
        waited, slowed = own.waited[:sets].sum(), own.slowed[:sets].sum()
        waits = tried.waited.sum() / waited if waited > 0.0 else 1.0
        return float((1.0 - self.slowdown) * waits + self.slowdown * tried.slowed.sum() / slowed)

    def _better(self, tried: "Cost", own: "Cost", margin: float) -> bool:
        """Whether a move is worth making."""
        worse = tried.waited.sum() > own.waited.sum() or tried.slowed.sum() > own.slowed.sum() * _SAME
        return not worse and self._share(tried, own) < 1.0 - margin


@cache
def compile_rollouts() -> None:
    """Load the kernel and all that a rehearsal needs of it, or compile it where that has never been done (about 20 s)."""
    compile_kernel()
    jobs = workload(Source("compile"), [0.0, 0.0, 1.0, 2.0], [100.0, 50.0, 50.0, 10.0], [2, 1, 1, 2])
    simulation = Simulation(parse_shape("1x2"), jobs, Estimates(jobs.run_time, jobs.run_time.copy()))
    simulation.run(RuleRanker(by_name("fifo")), until=5.0)
    snapshot = simulation.snapshot()
    pending = snapshot.jobs.pending
    OrderSearch().search(snapshot, pending, np.zeros(len(pending)), np.full(len(snapshot.jobs), 100.0))


class Cast(NamedTuple):
    """Who plays: one set of run times."""

    jobs: k.Array
    """(J,) records of the kernel."""
    heap: k.Array
    """(J,) the running ones by their ends."""
    need: k.Array
    """(J, 4)"""


def _cast(state: k.State) -> Cast:
    return Cast(state.jobs, state.heap, state.need)


class _Theatre:
    """The queue on the cluster, with one or several sets of run times, and one copy of it all to play on.

    Python around the kernel's own `advance`, not a compiled function of its own: that would keep an old kernel when Numba's
    cache does (it looks at one source file for each function), and be no faster.
    """

    def __init__(self, queue: Rows, state: k.State, settings: SimulationSettings, sets: Sequence[Cast]) -> None:
        """Args:
        queue: rows of the snapshot's jobs, as `state` has them.
        state: of `stage`; stays as it is.
        settings: Slurm's.
        sets: of run times.
        """
        self.queue, self.sets, self.plays = queue, len(sets), 0
        self._setup, self._pending = setup_of(settings), len(queue)
        self._tier = -state.jobs["tier"][: len(queue)]
        first_to_come = int(state.counts[k.NEXT])
        self._counted = np.concatenate((np.arange(len(queue)), np.arange(first_to_come, len(state.jobs))))
        # All that plays change lies in one piece of memory: one copy sets the stage again.
        room, moving = _in_one_piece([getattr(state, name) for name in _MOVING])
        self._room = room
        others = {name: column.copy() for name, column in state._asdict().items() if name not in _MOVING}
        self._stage = k.State(**others, **dict(zip(_MOVING, moving, strict=True)))
        self._sets = []
        for cast in sets:
            self._stage.jobs[...], self._stage.heap[...], self._stage.need[...] = cast
            self._sets.append(room.copy())
        self.order = np.arange(len(queue), dtype=np.float64)
        """Keys of the queue as it is."""

    def moved(self, at: int, move: MoveTo) -> Floats:
        """Keys with one job in front of all or behind all."""
        keys = self.order.copy()
        keys[at] = _FRONT if move is MoveTo.FIRST else len(keys)
        return keys

    def last_beside(self, at: int) -> int | None:
        """Row of the last job of the tier of the one at `at`: moved to the back, it comes behind it. None: it is alone there."""
        beside = np.flatnonzero(self._tier == self._tier[at])
        beside = beside[beside != at]
        return int(self.queue[beside[-1]]) if len(beside) else None

    def play(self, keys: Floats, first: int = 0, last: int | None = None) -> Cost:
        """Play the queue, whose first `pending` rows wait, in the order of their keys, with the sets from `first` to before
        `last`; NaN where a job does not start.
        """
        s, n = self._stage, self._pending
        jobs = s.jobs[:n]
        order = np.lexsort((keys, self._tier))
        sets = self._sets[first:last]
        cost = Cost(np.zeros(len(sets)), np.zeros(len(sets)))
        self.plays += len(sets)
        for at, stage_as_set in enumerate(sets):
            self._room[...] = stage_as_set
            jobs["key"] = jobs["fixed"] = keys
            s.queue[:n] = order
            s.counts[k.QUEUED] = n
            k.something_changed(s, self._setup)
            k.advance(s, self._setup, np.inf, True, True, False, False)
            counted = s.jobs[self._counted]
            start, submit, run = counted["start"], counted["submit"], counted["run"]
            cost.waited[at] = (start - np.maximum(submit, 0.0)).sum()
            cost.slowed[at] = np.maximum(1.0, (start - submit + run) / np.maximum(run, BOUND)).sum()
        return cost

    def moves(self, candidates: int) -> list[tuple[int, MoveTo]]:
        """The first few jobs, each to the front and to the back, where that can make a difference; after a play of `order`."""
        at_once, last = self._stage.jobs["start"][: self._pending] <= 0.0, self._pending - 1
        possible = []
        for at in range(min(candidates, self._pending)):
            # Who starts now anyway gains nothing by going first.
            possible += [(at, MoveTo.FIRST)] if at > 0 and not at_once[at] else []
            possible += [(at, MoveTo.LAST)] if at < last else []
        return possible

    @property
    def stranded(self) -> Bools:
        """(n,) jobs that the last play has not started."""
        return np.isnan(np.asarray(self._stage.jobs["start"][: self._pending], dtype=np.float64))


def _in_one_piece(columns: Sequence[k.Array]) -> tuple[npt.NDArray[np.uint8], list[k.Array]]:
    """Memory with a copy of all columns, and the copies."""
    ends = np.cumsum([-(-column.nbytes // _ALIGNED) * _ALIGNED for column in columns])
    room = np.zeros(int(ends[-1]) + _ALIGNED, dtype=np.uint8)
    room = room[-room.ctypes.data % _ALIGNED :][: int(ends[-1])]
    copies = []
    for column, start in zip(columns, [0, *ends[:-1].tolist()], strict=True):
        copies.append(room[start : start + column.nbytes].view(column.dtype).reshape(column.shape))
        copies[-1][...] = column
    return room, copies


def _turned_out(
    state: k.State, jobs: JobTable, queue: Rows, run_times: Floats, spread: float, samples: int
) -> list[Cast]:
    """Run times as they may turn out, `samples` times: the expected ones times a factor, the same for a job in the cycles of a
    minute ago and of now. A running job takes longer than it has so far.

    The factor is log-logistic: as a log-normal one with that spread, but what is left of a job that runs has a closed form. For
    each job the draws are spread evenly over its distribution (Latin hypercube: McKay, Beckman and Conover, Technometrics
    1979), and so are those of the first half.
    """
    rows, pending = np.concatenate((queue, jobs.running)), len(queue)
    known = len(rows)  # behind them are those who are still to come
    expected = np.maximum(run_times[rows], 1.0)
    elapsed = np.maximum(-state.jobs["start"][:known], 0.0)
    elapsed[:pending] = 0.0
    scale = spread * np.sqrt(3.0) / np.pi
    over = np.where(elapsed > 0.0, elapsed / expected, 0.0) ** (1.0 / scale)
    ended = over / (1.0 + over)
    ended[over == np.inf] = 1.0
    casts = []
    for place in _places(jobs.job_id[rows], samples):
        level = ended + (1.0 - ended) * place
        taken = expected * (level / np.maximum(1.0 - level, _RARE)) ** scale
        records = state.jobs.copy()
        records["run"][:pending] = np.clip(taken[:pending], 1.0, records["limit"][:pending])
        _let_run(records[pending:known], np.maximum(taken - elapsed, 1.0)[pending:])
        casts.append(Cast(records, _heap(records), state.need))
    return casts


def _joined(sets: Sequence[Cast], state: k.State, came: RecentJobs, area: Floats) -> list[Cast]:
    """Each set, and jobs that come as some of those came lately, and are like them: another few for each set, the same in each cycle.

    They ask for GPUs or CPUs in all, of any nodes of the pool; and they stand in the queue behind as many jobs as are expected to need
    less.

    Args:
        sets: who waits and who runs.
        state: of `stage`, with rows for those who come.
        came: to choose from.
        area: (n,) seconds times GPUs that are expected of each waiting job.
    """
    first = int(state.counts[k.NEXT])
    most = _most(state)[state.jobs["pool"][first:]]
    places = np.searchsorted(np.sort(area), came.expected * _size(came.gpus, came.cpus), side="right") - 0.5
    joined = []
    for number, cast in enumerate(sets):
        chosen = np.argsort(uniform(came.job_id ^ (number << 40), 0, 3), kind="stable")[: len(most)]
        records, need = cast.jobs.copy(), cast.need.copy()
        coming = records[first:]
        limit = came.time_limit[chosen]
        coming["submit"] = np.cumsum(came.since[chosen])
        coming["limit"], coming["run"] = limit, np.minimum(came.run_time[chosen], limit)
        coming["fixed"] = places[chosen]
        need[first:, k.GPU] = np.minimum(came.gpus[chosen].astype(np.int64), most[:, k.GPU])
        need[first:, k.CPU] = np.minimum(came.cpus[chosen].astype(np.int64), most[:, k.CPU])
        joined.append(Cast(records, cast.heap, need))
    return joined


def _size(gpus: npt.NDArray[Any], cpus: npt.NDArray[Any]) -> Floats:
    """(n,) GPUs; of a job without any, CPUs."""
    return np.where(gpus > 0, gpus, np.maximum(cpus, 1)).astype(np.float64)


def _most(state: k.State) -> Ints:
    """(L, 4) what the usable nodes of each pool have in all."""
    usable, pools = state.nodes["usable"], len(state.pool_ptr) - 1
    of_pool = np.repeat(np.arange(pools), np.diff(state.pool_ptr))
    most = np.zeros((pools, k.DIMENSIONS), dtype=np.int64)
    np.add.at(most, of_pool, state.amount[k.ROOM][state.pool_nodes] * usable[state.pool_nodes, None])
    return most


def _places(job_id: Ints, samples: int) -> Floats:
    """(samples, n) where in its distribution each job is, 0 to 1: each sample in another stratum, in random order."""
    half = (samples + 1) // 2
    keys = (job_id ^ np.arange(half)[:, None] * 2**40).ravel()
    order = np.argsort(uniform(keys, 0, 1).reshape(half, -1), axis=0)
    upper = uniform(keys, 0, 2).reshape(half, -1) < 0.5
    strata = np.concatenate((2 * order + upper, 2 * order + ~upper))
    return (strata[:samples] + 0.5) / (2 * half)


def _let_run(running: k.Array, left: Floats) -> None:
    """These running jobs go on for so many seconds, but not past their limits."""
    running["end"] = np.minimum(left, running["ends_by"])
    running["run"] = running["end"] - running["start"]


def _heap(jobs: k.Array) -> k.Array:
    """(J,) the running jobs by their ends: a sorted list is a heap."""
    running = np.flatnonzero(jobs["fate"] == k.RUNNING)
    order = running[np.lexsort((running, jobs["end"][running]))]
    heap = np.zeros(len(jobs), dtype=k.END)
    heap["time"][: len(order)], heap["job"][: len(order)] = jobs["end"][order], order
    return heap


def stage(
    snapshot: Snapshot, queue: Rows, run_times: Floats, settings: SimulationSettings = _SLURM, coming: int = 0
) -> k.State:
    """The cluster as it is, for the simulator: rows 0 … n−1 are the waiting jobs of `queue`, then come the running ones, then room
    for so many jobs that are still to come, of the pools and partitions of the waiting ones in turn (`_joined` says what they ask for).

    Times count from the snapshot's. What cannot be known is thought simple: a job for several partitions waits in the first,
    one that has outlived its expected run time goes on for half as long again.
    """
    jobs, running, n = snapshot.jobs, snapshot.jobs.running, len(queue)
    pools = job_pools(snapshot, queue)
    rows = np.concatenate((queue, running))
    known = len(rows)
    records = np.zeros(known + coming, dtype=k.JOB)
    need = np.zeros((len(records), k.DIMENSIONS), dtype=np.int64)
    records["partition"][:known] = _partitions(snapshot, rows)
    records["tier"][:n] = priority_tiers(snapshot, queue)
    records["alone"][:known] = _alone(snapshot, rows)
    records["limit"][:known] = np.maximum(jobs.time_limit[rows], 1.0)
    records["run"][:known] = np.minimum(np.maximum(run_times[rows], 1.0), records["limit"][:known])
    records["submit"][:n] = -np.fmax(snapshot.time - jobs.eligible_time[queue], 0.0)
    records["pool"][:n] = pools.pool_of
    for name in ("partition", "tier", "pool"):
        records[name][known:] = np.resize(records[name][:n], coming)
    records["form"][known:], records["least"][known:], records["submit"][known:] = k.IN_ALL, 1, np.inf
    records["speed"] = 1.0
    records["start"], records["end"], records["ends_by"], records["key"] = np.nan, np.nan, np.inf, np.inf
    most = np.array([min(partition.max_nodes, _PLENTY) for partition in snapshot.partitions] or [1], dtype=np.int64)
    records["most_nodes"] = most[records["partition"]]
    size = pools.nodes.sum(axis=1)
    width = _ask(jobs, queue, size[pools.pool_of], records[:n], need[:n])
    records["on"][n:known] = np.diff(jobs.node_ptr)[running]
    slot = np.concatenate(
        ([0], np.cumsum(np.concatenate((width, records["on"][n:known], size[records["pool"][known:]]))))
    )
    records["slot"] = slot[:-1]
    nodes = snapshot.nodes
    state = idle_state(
        records, need, int(slot[-1]), capacity(nodes), nodes.usable, pools.nodes, snapshot.partitions, settings
    )
    state.counts[k.NEXT] = known
    _occupy(state, snapshot, n, int(slot[n]))
    return state


def _occupy(state: k.State, snapshot: Snapshot, pending: int, slot: int) -> None:
    """Let the running jobs, rows from `pending` and slots from `slot` on, hold their nodes and go on with their work."""
    jobs, nodes, running = snapshot.jobs, snapshot.nodes, snapshot.jobs.running
    records, room = state.jobs[pending : pending + len(running)], state.amount[k.ROOM]
    owner = np.repeat(np.arange(len(running)), records["on"])
    of_running = np.repeat(jobs.state == JobState.RUNNING, np.diff(jobs.node_ptr))
    held = jobs.node_idx[of_running].astype(np.int64)
    # What is free of a node, usable or not: Slurm tells all that is taken of it but local disk.
    disk = np.bincount(held, weights=jobs.tmp[running][owner], minlength=len(nodes))
    used = np.stack((nodes.gpus_alloc.sum(axis=1), nodes.cpus_alloc, np.ceil(nodes.mem_alloc), disk), axis=1)
    state.amount[k.NOW_FREE] = np.maximum(room - np.minimum(used, _PLENTY).astype(np.int64), 0)
    taken = room - state.amount[k.NOW_FREE]
    held_by = slice(slot, slot + len(held))
    state.given_node[held_by] = held
    state.given[held_by] = _given(jobs, running, owner, held, taken, records["alone"] == k.WHOLE)
    state.jobs_on[k.NOW_FREE] = np.bincount(held, minlength=len(nodes))
    state.closed[k.NOW_FREE, held[(records["alone"] != k.SHARED)[owner]]] = True
    records["fate"] = k.RUNNING
    records["start"] = np.fmin(jobs.start_time[running] - snapshot.time, 0.0)
    ends_by = np.nan_to_num(jobs.end_time[running] - snapshot.time, nan=np.inf, posinf=np.inf)
    records["ends_by"] = np.maximum(ends_by, 0.0)
    expected, elapsed = records["run"], -records["start"]
    _let_run(records, np.where(expected > elapsed, expected - elapsed, 0.5 * np.maximum(elapsed, 1.0)))
    state.heap[:] = _heap(state.jobs)
    state.holding[: len(running)] = pending + np.argsort(records["ends_by"], kind="stable")
    state.counts[k.HEAP] = state.counts[k.HOLDING] = len(running)


def _ask(jobs: JobTable, queue: Rows, pool_size: Ints, records: Any, need: Ints) -> Ints:
    """Write what each waiting job asks into `records` and `need`; (n,) nodes that it may get at most.

    GPUs per node: so many equal nodes. GPUs, or CPUs that do not divide by the nodes, in all: at least so many nodes.
    """
    count = np.maximum(jobs.nodes[queue], 1).astype(np.int64)
    gpus, cpus = jobs.gpus[queue].astype(np.int64), np.maximum(jobs.cpus[queue], 0).astype(np.int64)
    mem = np.nan_to_num(np.minimum(jobs.mem[queue], _PLENTY), nan=0.0).astype(np.int64)
    per_node = np.where(gpus > 0, (jobs.gpus_per_node[queue] > 0) | (gpus <= 1), cpus % count == 0)
    each = np.where(per_node, count, 1)
    for column, amount in enumerate((gpus, cpus, mem)):
        need[:, column] = -(-amount // each)
    need[:, k.DISK] = np.minimum(jobs.tmp[queue], _PLENTY).astype(np.int64)
    units = np.maximum(np.where(gpus > 0, gpus, cpus), 1)
    records["form"] = np.where(per_node, k.PER_NODE, k.IN_ALL)
    records["least"] = np.where(per_node, count, np.minimum(count, units))
    return np.where(per_node, count, np.minimum(units, np.maximum(pool_size, 1)))


def _given(jobs: JobTable, running: Rows, owner: Rows, held: Ints, taken: Ints, whole: Bools) -> Ints:
    """(slots, 4) what running jobs hold of their nodes: even shares, but of no node more in all than is `taken` of it.

    Slurm does not tell the shares of a job whose GPUs are not the same on all of its nodes. What even shares leave over of
    such a node goes to the jobs on it that got less than they hold, in order. Whole nodes are held with all that they have.
    """
    on = np.bincount(owner, minlength=len(running))
    mem = np.nan_to_num(np.minimum(jobs.mem[running], _PLENTY), nan=0.0)
    total = np.stack((jobs.gpus[running], jobs.cpus[running], mem), axis=1).astype(np.int64)
    given = np.zeros((len(held), k.DIMENSIONS), dtype=np.int64)
    given[:, :3] = -(-total // np.maximum(on, 1)[:, None])[owner]
    given[:, k.DISK] = np.minimum(jobs.tmp[running], _PLENTY).astype(np.int64)[owner]
    given[whole[owner]] = taken[held[whole[owner]]]
    order = np.argsort(held, kind="stable")
    node = held[order]
    first = np.searchsorted(node, node)  # where the entries of the same node begin
    for d in range(k.DIMENSIONS):
        running_sum = np.cumsum(given[order, d])
        before = np.where(first > 0, running_sum[np.maximum(first - 1, 0)], 0)
        upto = np.minimum(running_sum - before, taken[node, d])
        start = np.arange(len(node)) == first
        given[order, d] = np.diff(upto, prepend=0) * ~start + upto * start
    for d in range(k.DISK):
        _make_up(given[:, d], owner, held, total[:, d], taken[:, d])
    return given


def _make_up(given: Ints, owner: Rows, held: Ints, total: Ints, taken: Ints) -> None:
    """Give what even shares have left over of nodes to the jobs on them that lack it; one kind of resource."""
    have = np.bincount(owner, weights=given, minlength=len(total)).astype(np.int64)
    if (have >= total).all():
        return
    left = taken - np.bincount(held, weights=given, minlength=len(taken)).astype(np.int64)
    for at in np.flatnonzero((have < total)[owner]):
        job = owner[at]
        more = min(int(left[held[at]]), int(total[job] - have[job]))
        if more > 0:
            given[at] += more
            left[held[at]] -= more
            have[job] += more


def _alone(snapshot: Snapshot, rows: Rows) -> Ints:
    """(n,) SHARED, ISOLATED or WHOLE."""
    jobs = snapshot.jobs
    exclusive = exclusive_partitions(snapshot)[jobs.partition.codes[rows]]
    whole = jobs.exclusive[rows] | np.isnan(jobs.mem[rows]) | exclusive
    isolated = np.array([name == OverSubscribe.NO.value for name in jobs.oversubscribe.names] + [False])
    return np.where(whole, k.WHOLE, np.where(isolated[jobs.oversubscribe.codes[rows]], k.ISOLATED, k.SHARED))


def _partitions(snapshot: Snapshot, rows: Rows) -> Ints:
    """(n,) partition that a job blocks: the first that it names."""
    index = {partition.name: at for at, partition in enumerate(snapshot.partitions)}
    column = snapshot.jobs.partition
    of = [index.get(name.split(",")[0], 0) for name in column.names]
    return np.array([*of, 0], dtype=np.int64)[column.codes[rows]]
