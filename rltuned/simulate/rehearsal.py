"""The queue played to its end in several orders, with the compiled simulator: which of the first few jobs goes first?

A roll-out policy: the policy's own order is played, then the same order with each of its first `candidates` jobs put in front
of all and behind all. The best play wins. Every play starts from the cluster as it is, runs jobs for their *expected* run
times, backfills on their *limits* as Slurm does, and knows of no job that is still to come. docs/rehearsal.md has what it is
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
from rltuned.decide.rehearsal import Move, Rehearsed
from rltuned.decide.scope import priority_tiers
from rltuned.observe.supply import exclusive_partitions
from rltuned.policy.heuristics import by_name
from rltuned.simulate import kernel as k
from rltuned.simulate.engine import Simulation, idle_state, setup_of
from rltuned.simulate.rankers import RuleRanker, compile_kernel
from rltuned.simulate.requests import capacity
from rltuned.simulate.values import Backfill, Estimates, SimulationSettings
from rltuned.workload.estimates import normals
from rltuned.workload.jobs import Source, workload

Rows = npt.NDArray[np.intp]

BOUND: Final = 10.0
"""Seconds: run times below it count as this in a bounded slowdown."""

_PLENTY: Final = 2**40
_SLURM: Final = SimulationSettings()
_FRONT: Final = -1.0
_CERTAIN: Final = 0.1
"""Spread up to which expected run times are taken as they are: estimates that are true, but for what is rounded."""
_ATTEMPTS: Final = 8
"""Draws for a running job that has outlived those before."""
_SAME: Final = 1.0001
"""A slowdown that is larger by no more than this factor counts as no worse."""
_MOVING: Final = (
    "jobs",
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
"""What a play changes and the next one must find as it was; the rest is room to work in, or never changes."""


def in_time() -> bool:
    """There is always time for one more play."""
    return True


class Cost(NamedTuple):
    """Of a play, all jobs together."""

    waited: float
    """Seconds of waiting from now on."""
    slowed: float
    """Bounded slowdowns."""

    def plus(self, other: "Cost") -> "Cost":
        """Of two plays together."""
        return Cost(self.waited + other.waited, self.slowed + other.slowed)


@dataclass(frozen=True)
class QueueRehearsal:
    """Satisfies `rltuned.decide.rehearsal.Rehearsal`."""

    candidates: int = 8
    """Jobs at the head of the policy's order that are tried in front and behind."""
    depth: int = 64
    """Jobs at the head of that order that are played; those behind them follow whatever is decided here."""
    slowdown: float = 0.25
    """Share of the bounded slowdown in what is compared; the wait has the rest, each as a share of the policy's own order. A
    move that makes the slowdown worse is never made: short jobs do not pay for long ones."""
    margin: float = 0.01
    """Least gain, as a share: what is predicted to gain less is noise, and not worth a write."""
    samples: int = 6
    """Sets of run times that each order is played with where they are uncertain: an order that is good for the expected ones
    only is good by chance."""
    finalists: int = 4
    """Orders that are played with all of them; the others with the first half."""
    settings: SimulationSettings = _SLURM
    """Of the Slurm that is played."""
    time_left: Callable[[], bool] = in_time
    """Asked before each play: False ends the rehearsal with the best so far."""

    def rehearse(
        self, snapshot: Snapshot, rows: Rows, scores: Floats, run_times: Floats, spread: float = 0.0
    ) -> Rehearsed | None:
        """As the protocol says."""
        if len(rows) < 2:
            return None
        tiers = priority_tiers(snapshot, rows)
        # The order of the plan: tier, score; what the scores cannot tell apart stays in the order of priority.
        order = np.lexsort((snapshot.jobs.job_id[rows], -snapshot.jobs.priority[rows], -scores, -tiers))
        queue = rows[order][: self.depth]
        # Where jobs may pass each other, one that an endless play does not start fits on no nodes that there are: Slurm reserves
        # nothing for it, and its wait is nobody's merit.
        passing = Backfill.EASY if self.settings.backfill is Backfill.NONE else self.settings.backfill
        state = stage(snapshot, queue, run_times, self.settings)
        theatre = _Theatre([state], replace(self.settings, backfill=passing), len(queue))
        own, stranded = theatre.play(theatre.order), theatre.stranded
        samples = self.samples if spread > _CERTAIN else 1
        first, plays = (samples + 1) // 2, 1
        if stranded.any():
            queue = queue[~stranded]
            if len(queue) < 2:
                return None
            state = stage(snapshot, queue, run_times, self.settings)
        if stranded.any() or samples > 1 or passing is not self.settings.backfill:
            stages = [state]
            if samples > 1:
                stages = _all_turned_out(state, snapshot.jobs, queue, run_times, spread, samples)
            theatre = _Theatre(stages, self.settings, len(queue))
            own = theatre.play(theatre.order, 0, first)
            plays += first
        tried: list[tuple[float, int, Move, Cost]] = []
        for at in range(min(self.candidates, len(queue))):
            for move in Move:
                if at == (0 if move is Move.FIRST else len(queue) - 1) or not self.time_left():
                    continue
                cost = theatre.play(theatre.moved(at, move), 0, first)
                tried.append((self._share(cost, own), at, move, cost))
        plays += len(tried) * first
        sets = first
        if samples > first and tried:
            sets = samples
            tried.sort(key=lambda one: one[0])
            rest = theatre.play(theatre.order, first)
            own, finals = own.plus(rest), []
            plays += samples - first
            for _, at, move, cost in tried[: self.finalists]:
                if self.time_left():
                    whole = cost.plus(theatre.play(theatre.moved(at, move), first))
                    finals.append((self._share(whole, own), at, move, whole))
                    plays += samples - first
            tried = finals
        good = [one for one in tried if one[0] < 1.0 - self.margin and one[3].slowed <= own.slowed * _SAME]
        if not good:
            return Rehearsed(plays, own.waited / sets, own.waited / sets, None, None)
        _, at, move, best = min(good, key=lambda one: one[0])
        return Rehearsed(plays, own.waited / sets, best.waited / sets, int(queue[at]), move)

    def _share(self, tried: "Cost", own: "Cost") -> float:
        """What is compared: 1 for the policy's own order."""
        waited = tried.waited / own.waited if own.waited > 0.0 else 1.0
        return (1.0 - self.slowdown) * waited + self.slowdown * tried.slowed / own.slowed


@cache
def compile_rehearsal() -> None:
    """Load the kernel and all that a rehearsal needs of it, or compile it where that has never been done (about 20 s)."""
    compile_kernel()
    jobs = workload(Source("compile"), [0.0, 0.0, 1.0, 2.0], [100.0, 50.0, 50.0, 10.0], [2, 1, 1, 2])
    simulation = Simulation(parse_shape("1x2"), jobs, Estimates(jobs.run_time, jobs.run_time.copy()))
    simulation.run(RuleRanker(by_name("fifo")), until=5.0)
    snapshot = simulation.snapshot()
    pending = snapshot.jobs.pending
    QueueRehearsal().rehearse(snapshot, pending, np.zeros(len(pending)), np.full(len(snapshot.jobs), 100.0))


class _Player:
    """One set of run times: the stage as it was set, and a copy to play on.

    Python around the kernel's own `advance`, not a compiled function of its own: that would keep an old kernel when Numba's
    cache does (it looks at one source file for each function), and be no faster.
    """

    def __init__(self, state: k.State, setup: k.Setup, pending: int) -> None:
        self._set, self._setup, self._pending = state, setup, pending
        self._stage = k.State(*[column.copy() for column in state])
        self._tier = -state.jobs["tier"][:pending]

    @property
    def stranded(self) -> Bools:
        """(n,) jobs that the last play has not started."""
        return np.isnan(np.asarray(self._stage.jobs["start"][: self._pending], dtype=np.float64))

    def __call__(self, keys: Floats) -> Cost:
        """Play the queue, whose first `pending` rows wait, in the order of their keys; NaN where a job does not start."""
        s, n = self._stage, self._pending
        for name in _MOVING:
            getattr(s, name)[...] = getattr(self._set, name)
        jobs = s.jobs[:n]
        jobs["key"] = jobs["fixed"] = keys
        s.queue[:n] = np.lexsort((keys, self._tier))
        s.counts[k.QUEUED] = n
        k.something_changed(s, self._setup)
        k.advance(s, self._setup, np.inf, True, True, False, False)
        start, run = jobs["start"], jobs["run"]
        slowed = np.maximum(1.0, (start - jobs["submit"] + run) / np.maximum(run, BOUND))
        return Cost(float(start.sum()), float(slowed.sum()))


class _Theatre:
    """The same queue of `pending` jobs on a stage for each set of run times."""

    def __init__(self, stages: Sequence[k.State], settings: SimulationSettings, pending: int) -> None:
        setup = setup_of(settings)
        self._players = [_Player(state, setup, pending) for state in stages]
        self.order = np.arange(pending, dtype=np.float64)
        """Keys of the queue as it is."""

    def moved(self, at: int, move: Move) -> Floats:
        """Keys with one job in front of all or behind all."""
        keys = self.order.copy()
        keys[at] = _FRONT if move is Move.FIRST else len(keys)
        return keys

    def play(self, keys: Floats, first: int = 0, last: int | None = None) -> Cost:
        """Play with the sets from `first` to before `last`, costs added up."""
        total = Cost(0.0, 0.0)
        for player in self._players[first:last]:
            total = total.plus(player(keys))
        return total

    @property
    def stranded(self) -> Bools:
        """(n,) jobs that the last play of the first set has not started."""
        return self._players[0].stranded


def _all_turned_out(
    state: k.State, jobs: JobTable, queue: Rows, run_times: Floats, spread: float, samples: int
) -> list[k.State]:
    """The stage with each of several sets of run times."""
    rows = np.concatenate((queue, jobs.running))
    expected, job_id = np.maximum(run_times[rows], 1.0), jobs.job_id[rows]
    return [_turned_out(state, len(queue), expected, job_id, spread, seed) for seed in range(samples)]


def _turned_out(state: k.State, pending: int, expected: Floats, job_id: Ints, spread: float, seed: int) -> k.State:
    """The stage with run times as they may turn out: the expected ones · e^(σ z), z by job and seed, so that the cycles of a
    minute ago and of now think the same of a job. A running job takes longer than it has so far.
    """
    jobs = state.jobs.copy()
    elapsed = np.maximum(-jobs["start"], 0.0)
    elapsed[:pending] = 0.0
    taken = np.zeros(len(jobs))
    open_ = np.ones(len(jobs), dtype=np.bool_)
    for attempt in range(_ATTEMPTS):
        both = normals(job_id[open_], _ATTEMPTS * (seed // 2) + attempt)
        taken[open_] = expected[open_] * np.exp(spread * both[seed % 2])
        open_ = taken <= elapsed
        if not open_.any():
            break
    taken[open_] = elapsed[open_] + 0.5 * np.maximum(elapsed[open_], 1.0)
    jobs["run"][:pending] = np.clip(taken[:pending], 1.0, jobs["limit"][:pending])
    _let_run(jobs[pending:], (taken - elapsed)[pending:])
    return state._replace(jobs=jobs, heap=_heap(jobs, pending))


def _let_run(running: k.Array, left: Floats) -> None:
    """These running jobs go on for so many seconds, but not past their limits."""
    running["end"] = np.minimum(left, running["ends_by"])
    running["run"] = running["end"] - running["start"]


def _heap(jobs: k.Array, pending: int) -> k.Array:
    """(J,) the running jobs by their ends: a sorted list is a heap."""
    running = np.arange(pending, len(jobs))
    order = running[np.lexsort((running, jobs["end"][running]))]
    heap = np.zeros(len(jobs), dtype=k.END)
    heap["time"][: len(order)], heap["job"][: len(order)] = jobs["end"][order], order
    return heap


def stage(snapshot: Snapshot, queue: Rows, run_times: Floats, settings: SimulationSettings = _SLURM) -> k.State:
    """The cluster as it is, for the simulator: rows 0 … n−1 are the waiting jobs of `queue`, then come the running ones.

    Times count from the snapshot's. What cannot be known is thought simple: a job for several partitions waits in the first,
    one that has outlived its expected run time goes on for half as long again.
    """
    jobs, running, n = snapshot.jobs, snapshot.jobs.running, len(queue)
    pools = job_pools(snapshot, queue)
    rows = np.concatenate((queue, running))
    records = np.zeros(len(rows), dtype=k.JOB)
    need = np.zeros((len(rows), k.DIMENSIONS), dtype=np.int64)
    records["partition"] = _partitions(snapshot, rows)
    records["tier"][:n] = priority_tiers(snapshot, queue)
    records["alone"] = _alone(snapshot, rows)
    records["limit"] = np.maximum(jobs.time_limit[rows], 1.0)
    records["run"] = np.minimum(np.maximum(run_times[rows], 1.0), records["limit"])
    records["submit"][:n] = -np.fmax(snapshot.time - jobs.eligible_time[queue], 0.0)
    records["pool"][:n] = pools.pool_of
    records["speed"] = 1.0
    records["start"], records["end"], records["ends_by"], records["key"] = np.nan, np.nan, np.inf, np.inf
    most = np.array([min(partition.max_nodes, _PLENTY) for partition in snapshot.partitions] or [1], dtype=np.int64)
    records["most_nodes"] = most[records["partition"]]
    width = _ask(jobs, queue, pools.nodes.sum(axis=1)[pools.pool_of], records[:n], need[:n])
    records["on"][n:] = np.diff(jobs.node_ptr)[running]
    slot = np.concatenate(([0], np.cumsum(np.concatenate((width, records["on"][n:])))))
    records["slot"] = slot[:-1]
    nodes = snapshot.nodes
    state = idle_state(
        records, need, int(slot[-1]), capacity(nodes), nodes.usable, pools.nodes, snapshot.partitions, settings
    )
    state.counts[k.NEXT] = len(rows)  # nobody is still to come
    _occupy(state, snapshot, n, int(slot[n]))
    return state


def _occupy(state: k.State, snapshot: Snapshot, pending: int, slot: int) -> None:
    """Let the running jobs, rows from `pending` and slots from `slot` on, hold their nodes and go on with their work."""
    jobs, nodes, running = snapshot.jobs, snapshot.nodes, snapshot.jobs.running
    records, room = state.jobs[pending:], state.amount[k.ROOM]
    owner = np.repeat(np.arange(len(running)), records["on"])
    of_running = np.repeat(jobs.state == JobState.RUNNING, np.diff(jobs.node_ptr))
    held = jobs.node_idx[of_running].astype(np.int64)
    # What is free of a node, usable or not: Slurm tells all that is taken of it but local disk.
    disk = np.bincount(held, weights=jobs.tmp[running][owner], minlength=len(nodes))
    used = np.stack((nodes.gpus_alloc.sum(axis=1), nodes.cpus_alloc, np.ceil(nodes.mem_alloc), disk), axis=1)
    state.amount[k.NOW_FREE] = np.maximum(room - np.minimum(used, _PLENTY).astype(np.int64), 0)
    taken = room - state.amount[k.NOW_FREE]
    state.given_node[slot:] = held
    state.given[slot:] = _given(jobs, running, owner, held, taken, records["alone"] == k.WHOLE)
    state.jobs_on[k.NOW_FREE] = np.bincount(held, minlength=len(nodes))
    state.closed[k.NOW_FREE, held[(records["alone"] != k.SHARED)[owner]]] = True
    records["fate"] = k.RUNNING
    records["start"] = np.fmin(jobs.start_time[running] - snapshot.time, 0.0)
    ends_by = np.nan_to_num(jobs.end_time[running] - snapshot.time, nan=np.inf, posinf=np.inf)
    records["ends_by"] = np.maximum(ends_by, 0.0)
    expected, elapsed = records["run"], -records["start"]
    _let_run(records, np.where(expected > elapsed, expected - elapsed, 0.5 * np.maximum(elapsed, 1.0)))
    state.heap[:] = _heap(state.jobs, pending)
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
