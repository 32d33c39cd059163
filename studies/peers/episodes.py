"""Windows of a trace, simulated under a learned peer that explores, and the decisions that it made. No TensorFlow here.

The exploring rankers see what the served policy sees (`observation`) and rank by the same network. They add
sampling, as each paper does: RLScheduler draws its next job from the softmax of the outputs, SchedInspector draws
between accepting and rejecting the base rule's job.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from rltuned.core.tables import Floats, Ints, Rows, Singles
from rltuned.decide.see.features import FEATURES
from rltuned.decide.see.observation import Observation, observe
from rltuned.lab.evaluate.case import Case
from rltuned.simulate.engine import Ranker, Simulation
from rltuned.simulate.rankers import RuleRanker
from studies.peers import rlscheduler, schedinspector
from studies.peers.model import Peer
from studies.peers.rlscheduler import RLScheduler
from studies.peers.schedinspector import MAX_REJECTIONS, SchedInspector

HOUR: Final = 3600.0

_RUNNABLE: Final = FEATURES.index("can_schedule_now")


@dataclass(frozen=True)
class PeerEpisode:
    """The D decisions of one window, in order. A decision sees some rows and chooses.

    RLScheduler: the rows are the jobs it may pick, in order of submission, and the action is the row that it picks.
    SchedInspector: one row, the picked job's, and the action is 1 for a rejection.
    """

    rows: Singles
    """(R, inputs) of all decisions, one behind the other."""
    ptr: Ints
    """(D+1,) where each decision's rows begin."""
    action: Ints
    """(D,)"""
    reward: float
    """After the last decision; the others have none."""
    wait: float
    """Mean wait, hours; NaN where no job ran."""


def observation(simulation: Simulation) -> Observation:
    """What the served policy sees now, with the daemon's own features. Its `rows` are places in `pending`."""
    snapshot = simulation.snapshot()
    seen = observe(snapshot, snapshot.jobs.pending, simulation.estimates.run_time[snapshot.jobs.job_id - 1])
    return replace(seen, rows=seen.rows - len(simulation.running))


class Exploring(Ranker, Protocol):
    """A ranker that records its decisions."""

    rows: list[Singles]
    """Of each decision."""
    actions: list[int]


class Picking:
    """RLScheduler, exploring: picks jobs from the softmax of the outputs until one has to wait.

    As in its authors' code, a picked job that cannot start stays first until it does, and nothing is decided until
    then. Others are backfilled behind it, in the order of the outputs at the last decision; jobs submitted since, in
    the order of submission. A picked job counts as started if it can start now and the picks before it leave enough
    GPUs.
    """

    ages = True
    at_once = False

    def __init__(self, policy: RLScheduler, rng: np.random.Generator) -> None:
        self.policy, self.rows, self.actions = policy, list[Singles](), list[int]()
        self._rng = rng
        self._waiting = -1
        """The job that was picked and had to wait, as a row of the workload; −1: none."""
        self._place: Floats = np.zeros(0)
        """(N,) keys of all jobs of the workload, as of the last decision."""

    def fixed(self, simulation: Simulation) -> Floats | None:  # noqa: ARG002 - of the protocol
        """None: it is drawn anew."""
        return None

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """Picked jobs, then the others that the network saw by its outputs, then the rest as submitted."""
        if len(rows) and self._waiting not in rows:
            self._decide(simulation, rows)
        return self._place[rows]

    def _decide(self, simulation: Simulation, rows: Rows) -> None:
        seen = observation(simulation)
        shown = rows[seen.rows]
        visible = np.flatnonzero(rlscheduler.visible(seen))
        visible = visible[np.argsort(shown[visible])]  # rows of the workload are in order of submission
        inputs, jobs = rlscheduler.inputs(seen)[visible], shown[visible]
        outputs = self.policy.net.network(inputs)
        # What can start now, by GPUs: none where the job cannot.
        gpus = np.where(seen.features[visible, _RUNNABLE] > 0.0, seen.gpus[visible], np.inf)
        picked, started = self._pick(inputs, outputs, gpus, float(simulation.free[:, 0].sum()))
        self._waiting = -1 if started else int(jobs[picked[-1]])
        first = np.zeros(len(jobs))
        first[picked] = np.arange(len(picked)) - len(picked)
        total = len(simulation.jobs)
        self._place = total + np.arange(total, dtype=np.float64)
        self._place[jobs[np.lexsort((-outputs, first))]] = np.arange(len(jobs))

    def _pick(self, inputs: Singles, outputs: Floats, gpus: Floats, free: float) -> tuple[Rows, bool]:
        """Jobs in the order in which they are picked, and whether the last of them can start."""
        left, picked, started = np.arange(len(outputs)), list[int](), True
        while len(left) and started:
            action = _draw(outputs[left], self._rng)
            self.rows.append(inputs[left])
            self.actions.append(action)
            picked.append(int(left[action]))
            left = np.delete(left, action)
            free -= float(gpus[picked[-1]])
            started = free >= 0.0
        return np.array(picked, dtype=np.intp), started


class Inspecting:
    """SchedInspector, exploring: rejects the base rule's job with the probability that its network gives.

    The number of earlier rejections is that of `SchedInspector.score`, the most that fit into the job's wait: the
    network is trained on what it will be served.
    """

    ages = True
    at_once = False

    def __init__(self, policy: SchedInspector, rng: np.random.Generator) -> None:
        self.policy, self.rows, self.actions = policy, list[Singles](), list[int]()
        self._rng = rng

    def fixed(self, simulation: Simulation) -> Floats | None:  # noqa: ARG002 - of the protocol
        """None: it is drawn anew."""
        return None

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:
        """The base rule's order, its first job behind all others if it is rejected."""
        seen = observation(simulation)
        keys = len(rows) + rows.astype(np.float64)
        scores = self.policy.base.score(seen)
        rejections = schedinspector.rejected_before(seen)
        if len(seen):
            picked = schedinspector.head(seen, self.policy.base, rejections)
            if rejections[picked] < MAX_REJECTIONS:
                row = schedinspector.inputs(seen, picked, int(rejections[picked]))[None]
                rejects = self._rng.random() < 1.0 / (1.0 + np.exp(-self.policy.net.network(row)[0]))
                self.rows.append(row)
                self.actions.append(int(rejects))
                if rejects:
                    scores[picked] = scores.min() - 1.0
        keys[seen.rows] = -scores
        return keys


def run_episode(peer: Peer, window: Case, rng: np.random.Generator) -> PeerEpisode:
    """One window, from an idle cluster to the end of its last job.

    The reward is that of each paper's public code: −wait (RLScheduler), and (base − own) / max(base, own, 1 s), the gap
    to the base rule on the same jobs (SchedInspector).
    """
    ranker: Exploring = Picking(peer, rng) if isinstance(peer, RLScheduler) else Inspecting(peer, rng)
    own = mean_wait(window, ranker)
    if isinstance(peer, RLScheduler):
        reward = -own
    else:
        base = mean_wait(window, RuleRanker(peer.base))
        reward = (base - own) / max(base, own, 1.0 / HOUR)
    lengths = [len(each) for each in ranker.rows]
    columns = len(rlscheduler.COLUMNS if isinstance(peer, RLScheduler) else schedinspector.COLUMNS)
    return PeerEpisode(
        rows=np.concatenate([np.zeros((0, columns), dtype=np.float32), *ranker.rows]),
        ptr=np.cumsum([0, *lengths], dtype=np.int64),
        action=np.array(ranker.actions, dtype=np.int64),
        reward=reward,
        wait=own,
    )


def mean_wait(window: Case, ranker: Ranker) -> float:
    """Mean wait of the jobs that ran, hours: a scale that the value network does not have to learn."""
    simulation = Simulation(window.shape, window.submitted, window.estimates, asked=window.asked)
    simulation.run(ranker)
    result = simulation.result()
    return window.metrics(result.start, result.end)["wait_mean"] / HOUR


def _draw(value: Floats, rng: np.random.Generator) -> int:
    """One row, each with weight e^value: the largest of the values plus Gumbel noise is a draw from their softmax."""
    return int(np.argmax(value + rng.gumbel(size=len(value))))


def joined(episodes: Sequence[PeerEpisode]) -> PeerEpisode:
    """One behind the other; reward and wait are the means."""
    offsets = np.cumsum([0, *(int(each.ptr[-1]) for each in episodes)])
    return PeerEpisode(
        rows=np.concatenate([each.rows for each in episodes]),
        ptr=np.concatenate([*(e.ptr[:-1] + o for e, o in zip(episodes, offsets[:-1], strict=True)), offsets[-1:]]),
        action=np.concatenate([each.action for each in episodes]),
        reward=float(np.mean([each.reward for each in episodes])),
        wait=float(np.mean([each.wait for each in episodes])),
    )
