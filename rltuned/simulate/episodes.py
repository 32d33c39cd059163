"""Windows that a network schedules many times, fast: what training samples from (docs/simulator.md, Episodes).

`Episode.run` is `Simulation.run` with a ranker that calls `observe` and `Actor.score`, compiled as a whole. At
temperature 0 every job starts at the same time in both. An episode can do two things more: sample the first places of
the queue, and record what the network saw and did.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import RltunedError
from rltuned.core.tables import Bools, Codes, Floats, Ints, Singles
from rltuned.decide.rank.actor import MOMENT, RUN_TIME, Actor, on_means, plain_rule
from rltuned.decide.rank.protocol import QueueView
from rltuned.decide.see.features import RUN_TIME_HORIZON, known_run_times
from rltuned.decide.see.observation import GPUS_SCALE, STATE_COLUMNS, WINDOW
from rltuned.decide.see.supply import MOST_GPUS, MOST_MIB
from rltuned.simulate import episode_kernel as e
from rltuned.simulate.engine import Simulation
from rltuned.simulate.initial_state import restore
from rltuned.simulate.requests import Requests
from rltuned.simulate.shape import ClusterShape, parse_shape
from rltuned.simulate.values import Estimates, JobFate, SimulationSettings
from rltuned.simulate.workload.jobs import Source, Workload, workload

_FIRST_STEPS: Final = 64
_FIRST_ROWS: Final = 4096  # room on the first tape of an episode, before it has to grow
_SPARE: Final = 1.1
"""Room on the next one, in lengths of the last: another order makes about as many rows."""


@dataclass(frozen=True)
class Trajectory:
    """One run. N jobs, S steps (refreshes), R rows (jobs seen, over all steps). Times: seconds on the workload's clock.

    What is not recorded is empty: S = R = 0.
    """

    ptr: Ints  # (S+1,) rows of step s: ptr[s] to ptr[s+1]; in the order of `observe`
    state: Singles  # (R, 8) `Actor.terms`
    moment: Floats  # (S, 14) `Actor.moment`
    score: Floats  # (R,) what the actor gives
    job: Codes  # (R,) row of the workload
    picks: Codes
    """(S, heads) row within the step of the job at each sampled place; −1: the queue is shorter."""
    logp: Floats  # (S,) log-probability of the picks in their order; 0 at temperature 0
    time: Floats  # (S,)
    start: Floats  # (N,) like `end`; NaN for a job that never ran
    end: Floats

    def __len__(self) -> int:
        return len(self.time)


class Episode:
    """One window, to be run any number of times. Not for several threads at once: the runs share the cluster's state.

    Between runs it keeps a few hundred bytes for each job: thousands of windows fit into memory.
    """

    def __init__(
        self,
        shape: ClusterShape,
        jobs: Workload,
        estimates: Estimates,
        settings: SimulationSettings | None = None,
        asked: Requests | None = None,
        *,
        predicted: bool = False,
    ) -> None:
        """The arguments are those of `Simulation`; `predicted`: whether the estimates are predicted means (`on_means`).
        Raises RltunedError: as `Simulation`; a node with GPUs of two types, whose free GPUs the simulator does not tell
        apart by type as `observe` would; and a floating reservation, of which that does not know.
        """
        if shape.longest is not None:
            raise RltunedError(
                "episodes are for clusters without floating reservations, of which observe does not know"
            )
        if (np.count_nonzero(shape.nodes.gpus, axis=1) > 1).any():
            raise RltunedError("episodes are for clusters whose nodes have GPUs of one type each")
        self._simulation = Simulation(shape, jobs, estimates, settings, asked=asked)
        self._initial = deepcopy(self._simulation.state[:-1])
        self._view = _view(self._simulation, estimates)
        self._facts = _facts(self._simulation, self._view)
        self._expected: dict[str, Floats] = {}
        self._room = _FIRST_STEPS, _FIRST_ROWS
        self._predicted = predicted

    def run(self, actor: Actor, *, temperature: float, heads: int, seed: int, record: bool) -> Trajectory:
        """From the first submission to the last end. The same arguments give the same trajectory.

        The first `heads` places are drawn from the softmax over scores / `temperature`, the rest follows by score; 0:
        the best score first, ties by submission. `record`: whether to keep what was seen and done. Raises RltunedError:
        weights that are not finite; a temperature, seed or number of heads below 0.
        """
        if not (0.0 <= temperature < np.inf and heads >= 0 and 0 <= seed < 2**64):
            raise RltunedError(f"no sample of {heads} places at temperature {temperature:g} with seed {seed}")
        net = self._net(on_means(actor) if self._predicted else actor)
        state, setup = self._simulation.state, self._simulation.setup
        restore(state, self._initial)
        work = _work(self._facts)
        work.random[0] = seed
        tape = _tape(*(self._room if record else (0, 0)), heads)
        while e.roll_out(state, setup, self._facts, net, work, tape, float(temperature), heads) == e.FULL:
            tape = _longer(tape)
        if record:
            steps, rows = (int(_SPARE * length) + WINDOW for length in tape.length)
            self._room = steps, rows
        return self._trajectory(tape)

    def _net(self, actor: Actor) -> e.Net:
        weights = {name: value.astype(np.float64) for name, value in actor.weights.items()}
        if not all(np.isfinite(value).all() for value in weights.values()):
            raise RltunedError("a network with weights that are not finite cannot order a queue")
        key, view = str(weights.get(RUN_TIME)), self._view
        if key not in self._expected:
            self._expected[key] = np.array(actor.expected_run_time(view.run_time, view.time_limit))
        expected = self._expected[key]
        return e.Net(
            constant=weights["constant"],
            kernel=weights["kernel"],
            bias=weights["bias"],
            change=weights["change"],
            objective=np.array(actor.objective),
            expected=expected,
            requested_time=np.minimum(np.log1p(expected) / e.TIME_SCALE, 1.0).astype(np.float32),
        )

    def _trajectory(self, tape: e.Tape) -> Trajectory:
        records = self._simulation.state.jobs
        start = records["start"].copy()
        ended = ~np.isnan(start) & (records["fate"] != JobFate.RUNNING)
        steps, rows = (int(length) for length in tape.length)
        return Trajectory(
            ptr=tape.ptr[: steps + 1],
            **{name: getattr(tape, name)[:rows] for name in ("state", "score", "job")},
            **{name: getattr(tape, name)[:steps] for name in ("moment", "picks", "logp", "time")},
            start=start,
            end=np.where(ended, records["end"], np.nan),
        )


def _view(simulation: Simulation, estimates: Estimates) -> QueueView:
    """All jobs as `see.features.demand` reads them: r is cut by the limit, finite, at least 1."""
    n = len(simulation.jobs)
    return QueueView(
        run_time=known_run_times(estimates.run_time, estimates.time_limit),
        time_limit=np.maximum(estimates.time_limit, 1.0),
        gpus=simulation.taken_gpus,
        wait=np.zeros(n),
        submit=np.zeros(n),
        priority=np.zeros(n),
    )


def _facts(simulation: Simulation, view: QueueView) -> e.Facts:
    """What `decide.see.features` and `see.observation` make of the jobs alone."""
    shape, jobs, asked = simulation.shape, simulation.jobs, simulation.asked
    n, usable = len(jobs), shape.nodes.usable
    configured = shape.nodes.gpus.sum(axis=1)
    member: Bools = asked.pool_nodes & usable
    pool_gpus = np.maximum((member * configured).sum(axis=1).astype(np.float64), 1.0)
    gpus = view.gpus
    state = np.zeros((n, len(STATE_COLUMNS)), dtype=np.float32)
    state[:, STATE_COLUMNS.index("requested_limit")] = (
        np.log1p(np.minimum(view.time_limit, RUN_TIME_HORIZON)) / e.TIME_SCALE
    )
    state[:, STATE_COLUMNS.index("requested_gpus")] = np.minimum(np.log(np.maximum(gpus, 1.0)) / GPUS_SCALE, 1.0)
    kinds, kind_of = _kinds(shape, jobs, asked)
    return e.Facts(
        state=state,
        gpus=gpus,
        run_time=view.run_time,
        # A copy: another memory layout would be compiled for anew.
        estimate=simulation.estimates.run_time.astype(np.float64),
        kind_of=kind_of,
        kinds=kinds,
        member=member,
        pool_gpus=pool_gpus,
        mem=shape.nodes.mem.astype(np.float64),
        tmp=np.minimum(shape.nodes.tmp, MOST_MIB).astype(np.float32),
        cluster_gpus=max(float(configured.sum()), 1.0),
        tiers=np.unique(simulation.state.jobs["tier"])[::-1].copy(),
    )


def _kinds(shape: ClusterShape, jobs: Workload, asked: Requests) -> tuple[npt.NDArray[Any], Ints]:
    """(U,) `episode_kernel.KIND`: distinct requests as `features.num_ways` reads them, and (N,) which a job has."""
    exclusive = np.array([partition.oversubscribe.value == "EXCLUSIVE" for partition in shape.partitions])
    # The columns of `JobTable` that `Simulation.snapshot` makes of a request.
    count, gpus = np.maximum(asked.nodes, 1), jobs.gpus
    per_node = np.where(asked.per_node, asked.gpus, 0)
    given = np.minimum(np.fmax(jobs.mem, 0.0), MOST_MIB)
    records = np.zeros(len(jobs), dtype=e.KIND)
    records["pool"] = np.maximum(asked.pool, 0)
    records["wanted"] = count
    records["gpus"] = np.minimum(np.where(per_node > 0, per_node, np.ceil(gpus / count)), MOST_GPUS)
    records["cpus"] = np.ceil(jobs.cpus / count)
    records["mem"] = given / count
    records["tmp"] = np.minimum(jobs.tmp, MOST_MIB)
    records["alone"] = exclusive[np.maximum(asked.partition, 0)] | np.isnan(jobs.mem)
    records["divisible"] = (count <= 1) & (per_node <= 0) & (gpus > 1)
    records["in_all"] = np.where(records["divisible"], gpus, 0)
    records["per_cpu"] = np.where(records["divisible"], gpus / np.maximum(jobs.cpus, 1), 0)
    records["per_mib"] = np.where(records["divisible"], gpus / np.maximum(given, 1e-6), 0)
    kinds, kind_of = np.unique(records, return_inverse=True)
    return kinds, kind_of.astype(np.int64)


def _work(facts: e.Facts) -> e.Work:
    n, window = len(facts.gpus), WINDOW
    return e.Work(
        state=np.zeros((window, len(STATE_COLUMNS)), dtype=np.float32),
        shown=np.zeros(window, dtype=np.int64),
        is_shown=np.zeros(n, dtype=np.bool_),
        waiting=np.zeros(n, dtype=np.int64),
        queue=np.zeros(n, dtype=np.int64),
        first=np.zeros(1, dtype=np.int64),
        moment=np.zeros(len(MOMENT)),
        coefficients=np.zeros(len(STATE_COLUMNS)),
        score=np.zeros(window),
        chance=np.zeros(window),
        order=np.zeros(window, dtype=np.int64),
        ranked=np.zeros(window, dtype=np.int64),
        taken=np.zeros(window, dtype=np.bool_),
        running=np.zeros(n, dtype=np.int64),
        ends=np.zeros(n),
        listed=np.zeros(n, dtype=np.bool_),
        running_count=np.zeros(1, dtype=np.int64),
        released=np.zeros(n + 1),
        possible=np.zeros(len(facts.kinds), dtype=np.int8),
        random=np.zeros(1, dtype=np.uint64),
    )


def _tape(steps: int, rows: int, heads: int) -> e.Tape:
    return e.Tape(
        state=np.empty((rows, len(STATE_COLUMNS)), dtype=np.float32),
        moment=np.empty((steps, len(MOMENT))),
        score=np.empty(rows),
        job=np.empty(rows, dtype=np.int32),
        ptr=np.zeros(steps + 1, dtype=np.int64),
        picks=np.empty((steps, heads), dtype=np.int32),
        logp=np.empty(steps),
        time=np.empty(steps),
        length=np.zeros(2, dtype=np.int64),
    )


def _longer(tape: e.Tape) -> e.Tape:
    """Twice the room, with what is on it."""
    longer = _tape(2 * len(tape.time), 2 * len(tape.job), tape.picks.shape[1])
    for name in tape._fields:
        old = getattr(tape, name)
        getattr(longer, name)[: len(old)] = old
    return longer


def compile_episodes() -> None:
    """Load the compiled episodes, or compile them where that has never been done. Call it before anything is timed."""
    jobs = workload(Source("compile"), [0.0, 1.0, 2.0], [100.0, 50.0, 10.0], [1, 2, 1])
    episode = Episode(parse_shape("1x2"), jobs, Estimates(jobs.run_time, jobs.run_time.copy()))
    episode.run(plain_rule("compile"), temperature=1.0, heads=1, seed=0, record=True)
