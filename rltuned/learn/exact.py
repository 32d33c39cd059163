"""A simulation that stops at each refresh, and the roll-out on it that sees what the daemon sees: exact, and slow.

Every number that a policy looks at comes from `rltuned.observe.observe`. `rltuned.simulate.episodes` is the same, compiled;
tests compare the two.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.observe import Observation, observe
from rltuned.policy.actor import Actor
from rltuned.simulate import kernel as k
from rltuned.simulate.engine import Simulation

Rows = npt.NDArray[np.intp]


class _Answer:
    """A ranker that has been told the keys."""

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


class Played(Protocol):
    """What a roll-out left (`rltuned.simulate.episodes.Trajectory`): S refreshes, R jobs seen in all, N jobs of the window."""

    @property
    def ptr(self) -> npt.NDArray[np.int64]:
        """(S+1,) rows of each step."""

    @property
    def state(self) -> npt.NDArray[np.float32]:
        """(R, 8)"""

    @property
    def critic(self) -> npt.NDArray[np.float32]:
        """(R, 5)"""

    @property
    def base(self) -> npt.NDArray[np.float32]:
        """(R,) level of the residual's rule, 0 without one."""

    @property
    def job(self) -> npt.NDArray[np.int32]:
        """(R,) row of the workload."""

    @property
    def picks(self) -> npt.NDArray[np.int32]:
        """(S, heads) row within its step of each place that was drawn, −1: none."""

    @property
    def logp(self) -> Floats:
        """(S,) log-probability of these picks."""

    @property
    def time(self) -> Floats:
        """(S,) seconds."""

    @property
    def start(self) -> Floats:
        """(N,) seconds, NaN: never ran."""

    @property
    def end(self) -> Floats:
        """(N,) as `start`."""


@dataclass(frozen=True)
class Exactly:
    """A `Played` that was made here."""

    ptr: npt.NDArray[np.int64]
    state: npt.NDArray[np.float32]
    critic: npt.NDArray[np.float32]
    base: npt.NDArray[np.float32]
    job: npt.NDArray[np.int32]
    picks: npt.NDArray[np.int32]
    logp: Floats
    time: Floats
    start: Floats
    end: Floats


def plackett_luce(
    scores: Floats, ties: Rows, temperature: float, heads: int, rng: np.random.Generator
) -> tuple[Rows, npt.NDArray[np.int32], float]:
    """An order whose first `heads` places are drawn (Gumbel top-k, Kool et al., ICML 2019); the rest goes by score,
    equal ones by `ties`, smaller first.

    Returns:
        the order; (heads,) the drawn ones, −1 behind the last; their log-probability.
    """
    n = len(scores)
    rest = np.lexsort((ties, -scores))
    if temperature <= 0.0:
        return rest, np.full(heads, -1, dtype=np.int32), 0.0
    value = scores / temperature
    drawn = np.argsort(-(value + rng.gumbel(size=n)), kind="stable")[: min(heads, n)]
    picks = np.full(heads, -1, dtype=np.int32)
    picks[: len(drawn)] = drawn
    rest = rest[~np.isin(rest, drawn)]
    return np.concatenate((drawn, rest)), picks, log_probability(value, drawn)


def log_probability(value: Floats, drawn: Rows) -> float:
    """Of drawing `drawn` in this order, without replacement, each with weight e^value (Plackett 1975, Luce 1959)."""
    left, sum_ = np.ones(len(value), dtype=np.bool_), 0.0
    for pick in drawn:
        among = value[left]
        top = among.max()
        sum_ += float(value[pick] - top - np.log(np.exp(among - top).sum()))
        left[pick] = False
    return sum_


def play(
    simulation: Stepped, actor: Actor, *, temperature: float, heads: int, seed: int, record: bool = True
) -> Exactly:
    """A whole window by a policy; `simulation` has just been made."""
    rng = np.random.default_rng(seed)
    ptr, logp, time = [0], [], []
    state, critic, base = [], [], []
    job, picked = [], []
    while simulation.advance():
        pending = simulation.pending
        seen = simulation.observation()
        n = len(seen)
        order, picks, log_prob = plackett_luce(actor.score(seen), pending[seen.rows], temperature, heads, rng)
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
    return Exactly(
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
