"""Plain rules that an administrator could switch on instead of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Floats
from rltuned.errors import ConfigError
from rltuned.observe.observation import Observation
from rltuned.policy.base import Queue


@dataclass(frozen=True)
class Rule:
    """A policy that sorts by one number per job, the smallest first; equal ones by earlier submission.

    Its scores are places in that order, negated: jobs that are equal in both share one, so that whoever ranks decides
    (the plan does, by current priority and job id). Satisfies `rltuned.policy.base.Policy`.
    """

    name: str
    key: Callable[[Queue], Floats]
    """(n,) finite; smaller goes first."""
    ages: bool = False
    """Whether two jobs that wait may change places by the passing of time alone."""
    ties_by_submission: bool = True
    """Whether equal keys go by submission. If not, they share a score, and the plan leaves them as Slurm has them."""

    def score(self, observation: Observation) -> Floats:
        """(n,) scores, 0 for the first job, −1 for the next …"""
        key = self.key(observation)
        return -places(key, observation.submit if self.ties_by_submission else np.zeros(len(key))).astype(np.float64)


def places(key: Floats, submit: Floats) -> npt.NDArray[np.intp]:
    """(n,) place of each job when sorted by `key`, then by `submit`; 0 first, equal jobs share a place."""
    order = np.lexsort((submit, key))
    key, submit = key[order], submit[order]
    place = np.zeros(len(order), dtype=np.intp)
    place[order[1:]] = np.cumsum((key[1:] != key[:-1]) | (submit[1:] != submit[:-1]))
    return place


def submitted(queue: Queue) -> Floats:
    """FIFO, first in, first out: the submission time."""
    return queue.submit


def run_time(queue: Queue) -> Floats:
    """SJF, shortest job first: r. Optimal for mean completion time on one machine (Smith 1956, as SPT)."""
    return queue.run_time


def area(queue: Queue) -> Floats:
    """SAF, smallest area first: r · g (Carastan-Santos et al., CCGrid 2019, as "smallest estimated area first").

    A CPU job counts as one GPU, so that its run time still orders it.
    """
    return queue.run_time * np.maximum(queue.gpus, 1.0)


def own_priority(queue: Queue) -> Floats:
    """Slurm's own order, priority/multifactor's: the highest priority first (`rltuned.policy.multifactor`).

    In the daemon this leaves the queue as it is, and takes back what another policy has changed.
    """
    return -queue.priority


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule("fifo", submitted),
            Rule("sjf", run_time),
            Rule("saf", area),
            Rule("multifactor", own_priority, ages=True, ties_by_submission=False),
        )
    }
)


def by_name(name: str) -> Rule:
    """The rule called `name`.

    Raises:
        ConfigError: no such rule; the message names those that exist.
    """
    rule = RULES.get(name)
    if rule is None:
        raise ConfigError(f"there is no rule '{name}'; there are {', '.join(sorted(RULES))}")
    return rule
