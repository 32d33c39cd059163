"""When each pending job starts: the queue simulated forward under the order in force, in scenarios of run times and
arrivals (docs/start-times.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rltuned.core.changes import OverSubscribe
from rltuned.core.pools import job_pools
from rltuned.core.tables import Bools, Category, Floats, Ints, Rows, Snapshot
from rltuned.core.taken import taken_gpus
from rltuned.simulate import kernel as k
from rltuned.simulate.forecast.arrivals import DAY, ArrivalModel
from rltuned.simulate.forecast.start_forecast import (
    HORIZON,
    LEVELS,
    MOST_JOBS,
    ShorterLimits,
    StartForecast,
    StartRequest,
)
from rltuned.simulate.forecast.start_offer import SOON, SOONER
from rltuned.simulate.forecast.submissions import Submissions
from rltuned.simulate.initial_state import ArrivalRoom, ask, initial_state, unstarted
from rltuned.simulate.requests import capacity
from rltuned.simulate.scenarios import Scenario, SimulatedQueue, expected_scenario, sampled_scenarios, size
from rltuned.simulate.values import Backfill, SimulationSettings

MOST_ARRIVALS: Final = 1200  # of a scenario
LEAST_SCENARIOS: Final = 2
_STEPS: Final = ((128, 60.0, 120.0, 16), (512, 300.0, 300.0, 12), (MOST_JOBS, 600.0, 600.0, 8))
"""Up to how many jobs; seconds between main passes, and between passes of backfill; scenarios at most."""
_SLURM: Final = SimulationSettings()
PROBED_SCENARIOS: Final = 8  # of a probe
PROBE_HORIZON: Final = 2 * DAY  # seconds: when a probe starts later, that is what is said
_FOR_PROBES: Final = 0.3  # share of the time that probes get, where there are any
_SPREADS: Final = 0.1  # spread up to which run times are taken as they are


def _endless() -> float:
    """There is always time for one more scenario."""
    return math.inf


@dataclass(frozen=True)
class StartSimulation:
    """Simulates the cluster forward under the order in force."""

    scenarios: int = 16  # at most; of a long queue fewer (`cheaper`)
    settings: SimulationSettings = _SLURM  # of the simulated Slurm
    seconds_left: Callable[[], float] = _endless  # asked before each scenario

    def __call__(self, request: StartRequest) -> StartForecast | None:
        """The forecast. None: there is nothing to say, or no time for `LEAST_SCENARIOS` scenarios."""
        begun = self.seconds_left()
        rows = request.rows[:MOST_JOBS]
        if not len(rows) and not request.probes:
            return None
        queue, come = self._queue(request, rows)
        waits = np.full((len(queue.scenarios), len(rows)), np.inf)
        sooner = np.full((len(waits), len(k.SHORTER), len(rows)), np.inf)
        made, kept = 0, _FOR_PROBES * begun if request.probes else 0.0
        ready = self.seconds_left()
        for number in range(len(waits)):
            left = self.seconds_left()
            if made and left < math.inf and left - kept < (ready - left) / made:
                break
            waits[number] = queue.starts(number, HORIZON, self._enough, shorter=True)
            sooner[number] = np.minimum(queue.sooner, waits[number])
            made += 1
        if made < min(LEAST_SCENARIOS, len(waits)):  # one scenario has no quantiles
            return None
        probes = self._probed(request, queue, come, made)
        found = quantiles(waits[:made], HORIZON)
        return StartForecast(rows, found, made, probes, shorter_limits(found, sooner[:made]))

    def _enough(self) -> bool:
        return self.seconds_left() <= 0.0

    def _probed(self, request: StartRequest, queue: SimulatedQueue, come: "Arrivals", scenarios: int) -> Floats:
        """(p, 3) of the probes that there was time for."""
        found: list[Floats] = []
        scenarios = min(scenarios, PROBED_SCENARIOS)
        for at in range(len(request.probes)):
            row = len(come.known) - len(request.probes) + at
            if not come.fits[row]:
                found.append(np.full(len(LEVELS), np.nan))
                continue
            record, need = come.records[row], come.need[row]
            probe = come.first, record, need, PROBE_HORIZON, self._enough
            waits = [queue.start_of(number, *probe) for number in range(scenarios)]
            if self._enough():
                break
            found.append(quantiles(np.array(waits)[:, None], PROBE_HORIZON)[0])
        return np.array(found).reshape(-1, len(LEVELS))

    def _queue(self, request: StartRequest, rows: Rows) -> "tuple[SimulatedQueue, Arrivals]":
        snapshot, jobs = request.snapshot, request.snapshot.jobs
        settings, samples = cheaper(self.settings, len(rows))
        samples = min(self.scenarios, samples)
        come = Arrivals.of(request, rows)
        sampled = [come.sample(number, HORIZON) for number in range(samples)]
        most = max(len(times) for times, _ in sampled)
        arrive = max(int(come.width[which].sum()) for _, which in sampled)
        probed = int(come.width[len(come.known) - len(request.probes) :].max(initial=0))
        room = ArrivalRoom(arrive + probed, come.pools)
        state = initial_state(snapshot, rows, request.run_times, settings, 1 + most, room)
        if request.spread > _SPREADS:
            users = jobs.user.codes.astype(np.int64)
            scenarios = sampled_scenarios(state, jobs, rows, request.run_times, request.spread, samples, users)
        else:
            scenarios = [expected_scenario(state)] * (samples if most else 1)
        slots = len(state.given_node) - room.slots
        scenarios = [
            come.into(scenario, slots, slots + arrive, times, which)
            for scenario, (times, which) in zip(scenarios, sampled, strict=False)
        ]
        return SimulatedQueue(len(rows), state, settings, scenarios), come


def cheaper(settings: SimulationSettings, queued: int) -> tuple[SimulationSettings, int]:
    """How a queue of that length is simulated, and in how many scenarios at most: backfill as EASY does it, and passes
    at multiples of a minute or two, of five or ten where it is long. Slurm's own passes take ten times as long and
    more, and forecast little better (docs/start-times.md).
    """
    main, between, scenarios = next(steps for most, *steps in _STEPS if queued <= most)
    if settings.backfill is Backfill.SLURM:
        settings = replace(
            settings,
            backfill=Backfill.EASY,
            sched_interval=max(settings.sched_interval, main),
            bf_interval=max(settings.bf_interval, between),
        )
    return settings, int(scenarios)


def quantiles(waits: Floats, horizon: float) -> Floats:
    """(n, 3) quantiles at `LEVELS` of (K, n) sampled waits; infinite where they are beyond the horizon."""
    beyond = 2.0 * horizon
    found = np.quantile(np.minimum(waits, beyond), LEVELS, axis=0, method="median_unbiased").T
    return np.where(found > horizon, np.inf, found)


def shorter_limits(found: Floats, waits: Floats) -> ShorterLimits:
    """Who of n jobs, whose waits have the (n, 3) quantiles `found`, would wait noticeably less with a shorter limit, of
    (K, L, n) sampled waits with each.
    """
    scenarios, limits, n = waits.shape
    sooner = quantiles(waits.reshape(scenarios, limits * n), HORIZON).reshape(limits, n, len(LEVELS))
    middle, own = sooner[:, :, 1], found[:, 1]
    which, at = np.nonzero(np.isfinite(middle) & (own > SOON) & (middle <= SOONER * own))
    return ShorterLimits(k.SHORTER, at, np.array(k.SHORTER)[which], sooner[which, at])


@dataclass(frozen=True)
class Arrivals:
    """Who may come, as the simulator needs it. S submissions of the past, E pools."""

    model: ArrivalModel | None  # none: too little is known of who comes
    known: Submissions  # the submissions of the past, and behind them the probes of the request
    first: int  # row of the state that a probe takes; arrivals are behind it
    fits: Bools  # (S,) whether the cluster could ever run such a job
    records: k.Array  # (S,) as jobs that wait and have no slot yet
    need: Ints  # (S, 4)
    width: Ints  # (S,) nodes that it may get at most
    pools: Bools  # (E, M)

    @classmethod
    def of(cls, request: StartRequest, rows: Rows) -> "Arrivals":
        """Who may come, and the probes, of a request about the pending jobs `rows`."""
        model = None
        if request.submissions is not None:
            model = ArrivalModel.of(request.submissions, request.snapshot.time)
        known = _with_probes(request)
        snapshot = request.snapshot
        before = len(job_pools(snapshot, rows).nodes)
        partition, part_ok = _partition_of(snapshot, known)
        pool, pools = _pools(snapshot, known, partition)
        need = np.zeros((len(known), k.DIMENSIONS), dtype=np.int64)
        records = unstarted(len(known))
        sizes = pools.sum(axis=1)
        width = ask(known, sizes[pool], 2**40, records, need)
        tiers = np.array([part.priority_tier for part in snapshot.partitions], dtype=np.int64)
        exclusive = [part.oversubscribe is OverSubscribe.EXCLUSIVE for part in snapshot.partitions]
        whole = np.array(exclusive, dtype=np.bool_) | snapshot.scheduler.whole_nodes
        of_node = (pools @ snapshot.nodes.gpus.sum(axis=1) / np.maximum(sizes, 1))[pool]
        gpus = known.gpus.astype(np.int64)
        taken = np.where(whole[partition], np.maximum(gpus, np.maximum(known.nodes, 1) * of_node), gpus)
        limit = np.maximum(known.time_limit, 1.0)
        took = np.where(np.isnan(known.run_time), known.expected, known.run_time)
        for name, value in {
            "limit": limit,
            "run": np.clip(took, 1.0, limit),
            "fixed": _places(request, rows, known, taken),
            "partition": partition,
            "tier": tiers[partition],
            "pool": pool + before,
            "alone": np.where(whole[partition], k.WHOLE, k.SHARED),
        }.items():
            records[name] = value
        per_node = np.asarray(records["form"] == k.PER_NODE, dtype=np.bool_)
        fits = part_ok & _fits(snapshot, pools, pool, need, per_node, records["least"])
        return cls(model, known, len(rows) + len(snapshot.jobs.running), fits, records, need, width, pools)

    def sample(self, scenario: int, horizon: float) -> tuple[Floats, Rows]:
        """Times from now and rows of the submissions; those that fit."""
        if self.model is None:
            return np.zeros(0), np.zeros(0, dtype=np.intp)
        times, which = self.model.sample(scenario, horizon, MOST_ARRIVALS)
        ok = self.fits[which]
        return times[ok], which[ok]

    def into(self, scenario: Scenario, slots: int, probe_slot: int, times: Floats, which: Rows) -> Scenario:
        """The scenario with arrivals at (n,) `times` of rows `which`, in slots from `slots` on, and an empty probe."""
        n = len(times)
        records, need = scenario.jobs.copy(), scenario.need.copy()
        part = slice(self.first + 1, self.first + 1 + n)
        records[part] = self.records[which]
        records["submit"][part] = times
        if n:
            records["slot"][part] = slots + np.concatenate(([0], np.cumsum(self.width[which])[:-1]))
        need[part] = self.need[which]
        records["submit"][self.first], records["fate"][self.first] = 0.0, k.COMPLETED
        records["slot"][self.first] = probe_slot
        records["submit"][self.first + 1 + n :] = np.inf
        return Scenario(records, need)


def _with_probes(request: StartRequest) -> Submissions:
    """The submissions of a request and, behind them, its probes."""
    probes, now = request.probes, request.snapshot.time
    nodes = np.array([probe.nodes for probe in probes], dtype=np.int32)
    gpus = np.array([probe.gpus for probe in probes], dtype=np.int32)
    limit = np.array([probe.time_limit for probe in probes], dtype=np.float64)
    # What such a job would be expected to run: as much of its limit as the known jobs of theirs.
    jobs = request.snapshot.jobs
    known = np.isfinite(jobs.time_limit) & (jobs.time_limit > 0)
    share = float(np.median(request.run_times[known] / jobs.time_limit[known])) if known.any() else 1.0
    asked = Submissions(
        job_id=np.zeros(len(probes), dtype=np.int64),
        submit_time=np.full(len(probes), now),
        user=Category.of([""] * len(probes)),
        partition=Category.of([probe.partition for probe in probes]),
        gpu_type=Category.of([""] * len(probes)),
        nodes=nodes,
        gpus=nodes * gpus,
        gpus_per_node=gpus,
        cpus=nodes * np.array([probe.cpus for probe in probes], dtype=np.int32),
        mem=np.array([float(probe.nodes * probe.mem) for probe in probes], dtype=np.float64),
        time_limit=limit,
        expected=np.maximum(share * limit, 1.0),
        run_time=np.full(len(probes), np.nan),
    )
    return asked if request.submissions is None else request.submissions.and_then(asked)


def _partition_of(snapshot: Snapshot, known: Submissions) -> tuple[Ints, Bools]:
    """(S,) index of the partition of each submission, the first of several, and whether the cluster has it."""
    index = {partition.name: at for at, partition in enumerate(snapshot.partitions)}
    unnamed = 0 if len(index) == 1 else -1
    found = known.partition.mapped(lambda names: index.get(names.partition(",")[0], -1), unnamed, np.int64)
    return np.maximum(found, 0), found >= 0


def _pools(snapshot: Snapshot, known: Submissions, partition: Ints) -> tuple[Ints, Bools]:
    """(S,) the pool of each submission, and (E, M) the pools: nodes of its partition with the GPUs that it wants."""
    nodes = snapshot.nodes
    column = {name: at for at, name in enumerate(nodes.gpu_types)}
    types = known.gpu_type.mapped(lambda name: column.get(name, -1), none=-1, kind=np.int64)
    wants = np.where(known.gpus > 0, types + 1, -1)
    keys, pool = np.unique(np.stack((partition, wants), axis=1), axis=0, return_inverse=True)
    pools = np.zeros((len(keys), len(nodes)), dtype=np.bool_)
    for at, (part, kind) in enumerate(keys.tolist()):
        pools[at, snapshot.partitions[part].nodes] = True
        if kind >= 0:
            pools[at] &= (nodes.gpus.sum(axis=1) if kind == 0 else nodes.gpus[:, kind - 1]) > 0
    return pool.reshape(-1).astype(np.int64), pools


def _fits(snapshot: Snapshot, pools: Bools, pool: Ints, need: Ints, per_node: Bools, least: Ints) -> Bools:
    """(S,) whether the usable nodes of its pool, were they empty, could run each submission."""
    room = capacity(snapshot.nodes)
    rows, of = np.unique(np.column_stack((pool, per_node, least, need)), axis=0, return_inverse=True)
    found = np.zeros(len(rows), dtype=np.bool_)
    for at, (which, each, nodes, *asked) in enumerate(rows.tolist()):
        have = room[pools[which] & snapshot.nodes.usable]
        if each:
            found[at] = int((have >= asked).all(axis=1).sum()) >= nodes
        else:
            found[at] = len(have) >= nodes and bool((have.sum(axis=0) >= asked).all())
    return found[of.reshape(-1)]


def _places(request: StartRequest, rows: Rows, known: Submissions, taken: Floats) -> Floats:
    """(S,) where a submission that takes so many GPUs is queued: the waiting jobs have the places 0, 1, 2 …"""
    # Which rule is in force is seen from the queue itself: the jobs stand by expected run time, by that times size, or
    # by submission. By submission, and where nobody can tell, arrivals go behind.
    jobs, n = request.snapshot.jobs, len(rows)
    place = np.arange(n, dtype=np.float64)
    run_times = np.maximum(request.run_times[rows], 1.0)
    area = run_times * size(taken_gpus(request.snapshot, rows), jobs.cpus[rows])
    submitted = np.nan_to_num(jobs.submit_time[rows], nan=request.snapshot.time)
    expected = np.maximum(known.expected, 1.0)
    rules = ((area, expected * size(taken, known.cpus)), (run_times, expected))
    best, found = _likeness(submitted, place) if n > 2 else 1.0, np.full(len(known), float(n))
    for own, theirs in rules:
        like = _likeness(own, place) if n > 2 else 0.0
        if like > best:
            best, found = like, np.searchsorted(np.sort(own), theirs, side="right") - 0.5
    return found


def _likeness(values: Floats, place: Floats) -> float:
    """Spearman's rank correlation; 0 where all values are alike."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    return float(np.corrcoef(ranks, place)[0, 1]) if np.ptp(values) > 0 else 0.0
