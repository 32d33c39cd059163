"""A simulation that stops at each refresh, and a whole window under a policy that sees what the daemon sees: slow.

Every number that a policy looks at comes from `rltuned.observe.observe`. `rltuned.simulate.episodes` is the same,
compiled; tests compare the two.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.learn import plackett_luce
from rltuned.observe import Observation, observe
from rltuned.policy.actor import Actor
from rltuned.simulate import kernel as k
from rltuned.simulate.engine import Simulation

Rows = npt.NDArray[np.intp]


class _Answer:
    """A ranker with given keys."""

    ages = True
    at_once = False

    def __init__(self, keys: Floats) -> None:
        self._keys = keys

    def fixed(self, simulation: Simulation) -> Floats | None:  # noqa: ARG002 - of the protocol
        return None

    def keys(self, simulation: Simulation, rows: Rows) -> Floats:  # noqa: ARG002 - of the protocol
        return self._keys


class Stepped(Simulation):
    """`run` taken apart: whoever ranks is outside, and is waited for."""

    _ranked = False

    def advance(self) -> bool:
        """Move to the next moment at which the queue wants to be ranked; False: everything is over."""
        over = k.advance(self._state, self._setup, np.inf, self._ranked, False, True, False) != k.REFRESH
        self._ranked = False
        return not over

    def rank(self, order: Rows) -> None:
        """`order`: places in `pending`, the first first. The simulation goes on from there."""
        keys = np.empty(len(order))
        keys[order] = np.arange(len(order))
        self._rank(_Answer(keys))
        self._ranked = True

    def observation(self) -> Observation:
        """What the policy sees now; its `rows` are places in `pending`."""
        snapshot = self.snapshot()
        first = len(self.running)
        rows = np.concatenate((self.running, self.pending))
        seen = observe(snapshot, np.arange(first, len(rows)), self.estimates.run_time[rows])
        seen.rows[:] -= first
        return seen


@dataclass(frozen=True)
class ExactTrajectory:
    """S refreshes, R jobs seen in all, N jobs of the window; the fields of `rltuned.simulate.episodes.Trajectory`."""

    ptr: npt.NDArray[np.int64]
    """(S+1,) where the rows of each step begin."""
    state: npt.NDArray[np.float32]
    """(R, 8)"""
    critic: npt.NDArray[np.float32]
    """(R, 5)"""
    base: npt.NDArray[np.float32]
    """(R,) level of the residual's rule, 0 without one."""
    job: npt.NDArray[np.int32]
    """(R,) row of the workload."""
    picks: npt.NDArray[np.int32]
    """(S, heads) row within its step of each place that was drawn, −1: none."""
    logp: Floats
    """(S,) log-probability of these picks."""
    time: Floats
    """(S,) seconds."""
    start: Floats
    """(N,) seconds, NaN: never ran."""
    end: Floats
    """(N,) as `start`."""


def run_exactly(
    simulation: Stepped, actor: Actor, *, temperature: float, heads: int, seed: int, record: bool = True
) -> ExactTrajectory:
    """A whole window under a policy; `simulation` has just been made."""
    rng = np.random.default_rng(seed)
    ptr, logp, time = [0], [], []
    state, critic, base = [], [], []
    job, picked = [], []
    while simulation.advance():
        pending = simulation.pending
        seen = simulation.observation()
        n = len(seen)
        order, picks, log_prob = plackett_luce.sample(actor.score(seen), pending[seen.rows], temperature, heads, rng)
        hidden = np.setdiff1d(np.arange(len(pending)), seen.rows)
        if record:
            ptr.append(ptr[-1] + n)
            state.append(seen.state[:n])
            critic.append(seen.critic[:n])
            base.append(actor.level(seen).astype(np.float32))
            job.append(pending[seen.rows].astype(np.int32))
            picked.append(picks)
            logp.append(log_prob)
            time.append(simulation.now)
        simulation.rank(np.concatenate((seen.rows[order], hidden)))
    result = simulation.result()
    return ExactTrajectory(
        ptr=np.asarray(ptr, dtype=np.int64),
        state=np.concatenate([np.zeros((0, 8), dtype=np.float32), *state]),
        critic=np.concatenate([np.zeros((0, 5), dtype=np.float32), *critic]),
        base=np.concatenate([np.zeros(0, dtype=np.float32), *base]),
        job=np.concatenate([np.zeros(0, dtype=np.int32), *job]),
        picks=np.array(picked, dtype=np.int32).reshape(len(picked), heads),
        logp=np.asarray(logp, dtype=np.float64),
        time=np.asarray(time, dtype=np.float64),
        start=result.start,
        end=result.end,
    )
