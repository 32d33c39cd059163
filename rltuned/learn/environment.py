"""A Gymnasium environment over the simulator, for whoever wants to try an algorithm of their own.

An episode is a window of a trace. A step is a refresh: the environment shows what the daemon's policy would see, takes
256 scores, ranks the queue by them, and moves to the next refresh. The reward is the cost of the base rule during the
step less the own cost, so that its sum over an episode is 1 − metric / the base's metric (`rltuned.learn.cost`).
"""

from collections.abc import Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats, Rows, Singles
from rltuned.errors import EvaluationError
from rltuned.evaluate.case import Case
from rltuned.learn.cost import FinishedJobs, Objective, cost
from rltuned.learn.sampling import by_rule, finished_jobs
from rltuned.observe import CRITIC_COLUMNS, STATE_COLUMNS, WINDOW, Observation
from rltuned.simulate import Simulation

_LARGEST: Final = 1e6
"""Of a score: an infinite box would be sampled without end."""

Shown = dict[str, npt.NDArray[Any]]


class QueueEnv(gym.Env[Any, Singles]):
    """One window for each episode; `reset(options={"case": i})` chooses it, otherwise it is drawn.

    Observation: ``state`` (256, 8), ``critic`` (256, 5), ``mask`` (256,), of `rltuned.observe.observe`. Action: (256,)
    scores, higher first. Scores of masked rows are ignored; NaN counts as the lowest score. Jobs that the window of 256
    leaves out follow behind. ``info`` has the time, and at the end the metrics of `rltuned evaluate` and the base
    rule's.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - of Gymnasium's interface

    def __init__(self, cases: Sequence[Case], objective: Objective | str = Objective.WAIT, base: str = "saf") -> None:
        """Args:
        cases: windows (`rltuned.learn.curriculum.candidate` makes some).
        objective: what the cost is.
        base: plain rule that the reward is relative to.

        Raises:
            EvaluationError: no windows.
        """
        if not cases:
            raise EvaluationError("an environment needs at least one window")
        self._cases, self._objective, self._base = tuple(cases), Objective(objective), base
        box = gym.spaces.Box
        self.observation_space = gym.spaces.Dict(
            {
                "state": box(0.0, 1.0, (WINDOW, len(STATE_COLUMNS)), np.float32),
                "critic": box(0.0, 1.0, (WINDOW, len(CRITIC_COLUMNS)), np.float32),
                "mask": gym.spaces.MultiBinary(WINDOW),
            }
        )
        self.action_space = box(-_LARGEST, _LARGEST, (WINDOW,), np.float32)
        self._simulation: Simulation | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        """A window from its first refresh on. See `gymnasium.Env.reset`.

        Raises:
            EvaluationError: in this window there is never anything to rank.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self._cases)))
        chosen = drawn if options is None else int(options.get("case", drawn))
        self._case = case = self._cases[chosen]
        start, end = by_rule(case, self._base)
        self._rule, self._rule_metrics = finished_jobs(case, start, end), case.metrics(start, end).as_dict()
        self._simulation = Simulation(case.shape, case.submitted, case.own_estimates(), asked=case.asked)
        if not self._simulation.next_refresh():
            raise EvaluationError(f"window {case.window.index}: there is never a job to rank")
        self._seen = self._simulation.observation()
        self._difference = 0.0  # before the first decision both are alike
        return _shown(self._seen), {"time": self._simulation.now, "case": chosen}

    def step(self, action: Singles) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """Rank the queue and go on to the next refresh. See `gymnasium.Env.step`."""
        simulation, seen = self._simulation, self._seen
        if simulation is None:
            raise EvaluationError("the episode is over: reset the environment")
        scores = np.nan_to_num(np.asarray(action, dtype=np.float64)[: len(seen)], nan=-np.inf)
        pending = simulation.pending
        order = np.lexsort((pending[seen.rows], -scores))
        simulation.rank(np.concatenate((seen.rows[order], np.setdiff1d(np.arange(len(pending)), seen.rows))))
        over = not simulation.next_refresh()
        difference = self._cost_difference(np.inf if over else simulation.now)
        reward = float(self._difference - difference)
        self._difference = difference
        info: dict[str, Any] = {"time": simulation.now}
        if over:
            result = simulation.result()
            info["metrics"] = self._case.metrics(result.start, result.end).as_dict()
            info["base_metrics"] = self._rule_metrics
            self._simulation = None
            return _empty(), reward, True, False, info
        self._seen = simulation.observation()
        return _shown(self._seen), reward, False, False, info

    def _cost_difference(self, time: float) -> float:
        """The cost until that time less the base rule's until then; infinite: of the whole window."""
        if self._simulation is None:
            return 0.0
        result, submit = self._simulation.result(), self._case.jobs.submit_time
        rows = self._rows(result.start)
        theirs = cost(self._objective, self._rule, self._rule)
        if np.isinf(time):
            mine = FinishedJobs(submit[rows], result.start[rows], result.end[rows])
            return cost(self._objective, mine, self._rule).total - theirs.total
        # A job that has not started or ended yet will do so later: it has cost nothing more until now.
        start = np.where(np.isnan(result.start), np.inf, result.start)[rows]
        start = np.maximum(np.minimum(start, time), submit[rows])
        held = np.minimum(self._case.jobs.run_time, self._case.estimates.time_limit)[rows]
        now = np.array([time])
        mine = FinishedJobs(submit[rows], start, start + held)
        return float((cost(self._objective, mine, self._rule).until(now) - theirs.until(now))[0])

    def _rows(self, start: Floats) -> Rows:
        """The jobs that can run on this cluster: the base rule ran them all."""
        rejected = list(self._case.asked.rejected)
        return np.setdiff1d(np.arange(len(start)), rejected)


def vectorised(
    cases: Sequence[Case], count: int, objective: Objective | str = Objective.WAIT, base: str = "saf"
) -> Any:
    """`count` environments that step together (`gymnasium.vector.SyncVectorEnv`), each over all of the windows."""
    return gym.vector.SyncVectorEnv([lambda: QueueEnv(cases, objective, base) for _ in range(count)])


def _shown(seen: Observation) -> Shown:
    return {"state": seen.state, "critic": seen.critic, "mask": seen.mask.astype(np.int8)}


def _empty() -> Shown:
    return {
        "state": np.zeros((WINDOW, len(STATE_COLUMNS)), dtype=np.float32),
        "critic": np.zeros((WINDOW, len(CRITIC_COLUMNS)), dtype=np.float32),
        "mask": np.zeros(WINDOW, dtype=np.int8),
    }
