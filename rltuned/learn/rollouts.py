"""What workers do: play windows by the current policy, say how much better than each other the roll-outs were, and measure.

No TensorFlow here: a worker starts quickly and the network is run in NumPy. Everything that is sent is a value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.evaluate.case import Case
from rltuned.evaluate.metrics import measure
from rltuned.evaluate.policies import rule_ranker
from rltuned.learn.cost import Objective, Ran, cost
from rltuned.learn.exact import Played
from rltuned.policy.actor import Actor
from rltuned.simulate.engine import Simulation
from rltuned.simulate.episodes import Episode, Network
from rltuned.workload.jobs import Estimates

Weights = Mapping[str, npt.NDArray[np.float32]]

CRITIC_HIDDEN: Final = 32
"""Width of the critic's layers."""


# --- playing


def episode(case: Case) -> Episode:
    """A window, ready to be played as often as one likes. `rltuned.learn.exact.play` is the same, slower."""
    return Episode(case.shape, case.submitted, _estimates(case), asked=case.asked)


def by_rule(case: Case, name: str) -> tuple[Floats, Floats]:
    """Start and end of each job under a plain rule."""
    simulation = Simulation(case.shape, case.submitted, _estimates(case), asked=case.asked)
    simulation.run(rule_ranker(name))
    result = simulation.result()
    return result.start, result.end


def _estimates(case: Case) -> Estimates:
    return Estimates(case.estimates.time_limit, case.estimates.run_time.copy())


def ran(case: Case, start: Floats, end: Floats) -> Ran:
    """The jobs that ran."""
    here = ~np.isnan(start) & ~np.isnan(end)
    return Ran(case.jobs.submit_time[here], start[here], end[here])


def metrics_of(case: Case, start: Floats, end: Floats) -> dict[str, float]:
    """As the yardstick measures."""
    usable = case.shape.nodes.gpus[case.shape.nodes.usable]
    gpus = case.jobs.gpus.astype(np.float64)
    return measure(case.jobs.submit_time, start, end, gpus, case.measured, case.groups, float(usable.sum())).as_dict()


# --- critic


def critic_weights(rng: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
    """Each job's row through one layer, the mean over the jobs and their number through another, and a value."""
    shapes = {"row": (5, CRITIC_HIDDEN), "pool": (CRITIC_HIDDEN + 1, CRITIC_HIDDEN), "value": (CRITIC_HIDDEN, 1)}
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        scale = 0.0 if name == "value" else np.sqrt(2.0 / shape[0])
        weights[f"{name}.kernel"] = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(shape[1], dtype=np.float32)
    return weights


def critic_values(weights: Weights, rows: npt.NDArray[np.float32], ptr: npt.NDArray[np.int64]) -> Floats:
    """(S,) value of each step; the twin of `ppo.values`."""
    if len(ptr) < 2:
        return np.zeros(0)
    hidden = np.maximum(rows.astype(np.float64) @ weights["row.kernel"] + weights["row.bias"], 0.0)
    count = np.diff(ptr)
    mean = np.add.reduceat(hidden, ptr[:-1], axis=0) / count[:, None]
    pooled = np.column_stack((mean, np.log1p(count) / np.log1p(256.0)))
    hidden = np.maximum(pooled @ weights["pool.kernel"] + weights["pool.bias"], 0.0)
    return np.asarray((hidden @ weights["value.kernel"] + weights["value.bias"])[:, 0])


# --- advantages


def to_go(costs: Floats, times: Floats, horizon: float) -> Floats:
    """(K, G) what is still to be added after each moment, from the (K, G) costs of each interval that begins at one.

    What lies `horizon` seconds ahead counts 1/e; infinite: everything counts.
    """
    if np.isinf(horizon):
        return np.cumsum(costs[:, ::-1], axis=1)[:, ::-1]
    kept = np.exp(-np.diff(times) / horizon)
    out = costs.copy()
    for at in range(len(times) - 2, -1, -1):
        out[:, at] += kept[at] * out[:, at + 1]
    return out


def leave_one_out(
    objective: Objective, plays: Sequence[Ran], base: Ran, times: Sequence[Floats], horizon: float = np.inf
) -> list[Floats]:
    """Advantage of each step of each of K plays of the same arrivals: what the others still have to pay at that time,
    on average, less what this play has to (an input-dependent baseline, Mao et al., ICLR 2019; RLOO).
    """
    grid = np.unique(np.concatenate(times))
    spans = [cost(objective, one, base) for one in plays]
    paid = np.stack([one.until(grid) for one in spans])
    total = np.array([one.total for one in spans])
    ahead = to_go(np.diff(paid, axis=1, append=total[:, None]), grid, horizon)
    others = (ahead.sum(axis=0) - ahead) / max(len(plays) - 1, 1)
    return [(others[at] - ahead[at])[np.searchsorted(grid, each)] for at, each in enumerate(times)]


def gaps(objective: Objective, play_: Ran, base: Ran, times: Floats) -> Floats:
    """(S,) reward of each step: what the base paid until the next one, less what this play paid. Σ = 1 − metric / base's."""
    mine, theirs = cost(objective, play_, base), cost(objective, base, base)
    difference = theirs.until(times) - mine.until(times)
    if len(difference):
        difference[0] = 0.0  # nothing was decided before the first step
    return np.diff(difference, append=theirs.total - mine.total)


def gae(rewards: Floats, values: Floats, kept: Floats, smoothing: float) -> tuple[Floats, Floats]:
    """Generalised advantage estimates (Schulman et al., ICLR 2016) and the critic's targets.

    `kept`: (S,) discount from each step to the next; `smoothing`: λ. The episode ends after the last step.
    """
    out, after, following = np.zeros(len(rewards)), 0.0, 0.0
    for at in range(len(rewards) - 1, -1, -1):
        delta = rewards[at] + kept[at] * following - values[at]
        after = delta + kept[at] * smoothing * after
        out[at], following = after, values[at]
    return out, out + values


# --- tasks


@dataclass(frozen=True)
class Roll:
    """K roll-outs of one window."""

    case: Case
    actor: Actor
    critic: Weights | None
    """For generalised advantage estimation; None: leave-one-out."""
    base: str
    objective: Objective
    temperature: float
    heads: int
    count: int
    seed: int
    horizon: float
    smoothing: float
    most_steps: int
    """Steps of each roll-out that are kept, drawn evenly."""


@dataclass(frozen=True)
class Steps:
    """What a network learns from: S decisions, R rows."""

    state: npt.NDArray[np.float32]
    critic: npt.NDArray[np.float32]
    base: npt.NDArray[np.float32]
    count: npt.NDArray[np.int64]
    """(S,) rows of each."""
    picks: npt.NDArray[np.int32]
    """(S, heads)"""
    advantage: Floats
    target: Floats
    """(S,) of the critic."""

    @classmethod
    def joined(cls, parts: Sequence["Steps"]) -> "Steps":
        """One behind the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__annotations__))


@dataclass(frozen=True)
class Rolled:
    """What came of a `Roll`."""

    steps: Steps | None
    """None: there was nothing to learn (`skipped` says why)."""
    skipped: str = ""
    ratios: tuple[float, ...] = ()
    """The objective of each roll-out in units of the base rule's."""


def roll(task: Roll) -> Rolled:
    """Play one window several times."""
    base = ran(task.case, *by_rule(task.case, task.base))
    if len(base.submit) < 2:
        return Rolled(None, "empty")
    window, policy = episode(task.case), Network.from_actor(task.actor)
    played: list[Played] = [
        window.run(policy, temperature=task.temperature, heads=task.heads, seed=task.seed + number, record=True)
        for number in range(task.count)
    ]
    plays = [ran(task.case, each.start, each.end) for each in played]
    times = [each.time for each in played]
    if any(len(each) == 0 for each in times):
        return Rolled(None, "no decision")
    totals = [cost(task.objective, one, base).total for one in plays]
    if task.critic is None:
        advantages = leave_one_out(task.objective, plays, base, times, task.horizon)
        targets = [np.zeros(len(each)) for each in times]
    else:
        advantages, targets = [], []
        for each, one in zip(played, plays, strict=True):
            kept = np.exp(-np.diff(each.time, append=each.time[-1]) / task.horizon)
            values = critic_values(task.critic, each.critic, each.ptr)
            rewards = gaps(task.objective, one, base, each.time)
            advantage, target = gae(rewards, values, kept, task.smoothing)
            advantages.append(advantage)
            targets.append(target)
    if not all(np.isfinite(each).all() for each in (*advantages, *targets, np.array(totals))):
        return Rolled(None, "reward is no number")
    rng = np.random.default_rng([task.seed, 2])
    parts = [
        _kept(each, advantage, target, task.most_steps, rng)
        for each, advantage, target in zip(played, advantages, targets, strict=True)
    ]
    steps = Steps.joined(parts)
    if not len(steps.count):
        return Rolled(None, "never two jobs to choose from")
    reference = cost(task.objective, base, base).total
    return Rolled(steps, ratios=tuple(1.0 + total - reference for total in totals))


def _kept(played: Played, advantage: Floats, target: Floats, most: int, rng: np.random.Generator) -> Steps:
    """Some of the steps that had something to decide."""
    count = np.diff(played.ptr)
    steps = np.flatnonzero(count > 1)
    if len(steps) > most:
        steps = np.sort(rng.choice(steps, most, replace=False))
    rows = flat_rows(played.ptr, steps)
    return Steps(
        state=played.state[rows],
        critic=played.critic[rows],
        base=played.base[rows],
        count=count[steps],
        picks=played.picks[steps],
        advantage=advantage[steps],
        target=target[steps],
    )


def flat_rows(ptr: npt.NDArray[np.int64], steps: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Rows of these steps, one behind the other."""
    count = (ptr[1:] - ptr[:-1])[steps]
    starts = np.repeat(ptr[:-1][steps] - np.concatenate(([0], np.cumsum(count)[:-1])), count)
    return np.asarray(starts + np.arange(int(count.sum())), dtype=np.int64)


@dataclass(frozen=True)
class Judge:
    """A window by policies: plain rules by name, or an actor, each without any chance."""

    case: Case
    rules: tuple[str, ...] = ()
    actor: Actor | None = None


def judge(task: Judge) -> dict[str, dict[str, float]]:
    """The yardstick's metrics of each; the actor's under "actor"."""
    found = {name: metrics_of(task.case, *by_rule(task.case, name)) for name in task.rules}
    if task.actor is not None:
        policy = Network.from_actor(task.actor)
        played = episode(task.case).run(policy, temperature=0.0, heads=0, seed=0, record=False)
        found["actor"] = metrics_of(task.case, played.start, played.end)
    return found


@dataclass(frozen=True)
class Teach:
    """Record what the policy sees in a window, for the warm start."""

    case: Case
    actor: Actor
    temperature: float
    seed: int
    most_steps: int


@dataclass(frozen=True)
class Lesson:
    """Queues as they were seen, and in hindsight how much each job needed."""

    state: npt.NDArray[np.float32]
    base: npt.NDArray[np.float32]
    count: npt.NDArray[np.int64]
    area: Floats
    """(R,) true GPU-seconds."""


def teach(task: Teach) -> Lesson:
    """Play one window and keep some of its queues."""
    policy = Network.from_actor(task.actor)
    played = episode(task.case).run(policy, temperature=task.temperature, heads=4, seed=task.seed, record=True)
    count = np.diff(played.ptr)
    steps = np.flatnonzero(count > 1)
    if len(steps) > task.most_steps:
        rng = np.random.default_rng([task.seed, 3])
        steps = np.sort(rng.choice(steps, task.most_steps, replace=False))
    rows = flat_rows(played.ptr, steps)
    jobs, limit = task.case.jobs, task.case.estimates.time_limit
    held = np.maximum(np.minimum(jobs.run_time, limit), 1.0) * np.maximum(jobs.gpus, 1)
    return Lesson(played.state[rows], played.base[rows], count[steps], held[played.job[rows]])
