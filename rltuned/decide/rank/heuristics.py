"""Plain rules that an administrator could switch on instead of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import ConfigError
from rltuned.core.tables import Floats
from rltuned.decide.rank.protocol import Queue
from rltuned.decide.see.observation import Observation


@dataclass(frozen=True)
class Rule:
    """A `Policy` that sorts by one number per job, the smallest first; equal ones by earlier submission.

    Jobs that are equal in both share a score, so that whoever ranks decides (the plan does, by current priority and job
    id).
    """

    name: str
    key: Callable[[Queue], Floats]  # (n,) finite; smaller goes first
    terms: str  # which job goes first, by the terms of the key, for `explain`
    ages: bool = False  # whether two jobs that wait may change places by the passing of time alone
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


def sizes(queue: Queue) -> Floats:
    """n, the GPUs of each job; a CPU job counts as one, so that its run time and its wait still order it."""
    return np.maximum(queue.gpus, 1.0)


def area(queue: Queue) -> Floats:
    """SAF, smallest area first: r · n (Carastan-Santos et al., CCGrid 2019, as "smallest estimated area first")."""
    return queue.run_time * sizes(queue)


def wfp3(queue: Queue) -> Floats:
    """WFP3: −(w/r)³ · n (Tang et al., CLUSTER 2009 and IPDPS 2010): long waits for their length, then large jobs."""
    return -((queue.wait / queue.run_time) ** 3) * sizes(queue)


def unicep(queue: Queue) -> Floats:
    """UNICEP: −w / (log₂ n · r) (Tang et al., CLUSTER 2009, "unicef"): long waits for their size, small jobs.

    log₂ 1 = 0: there the formula divides by nothing. Here log₂ n is at least 1, as its authors' code gives the smallest
    job of their machine the divisor 1 (Cobalt's `unicef`): one GPU counts as two.
    """
    return -queue.wait / (np.maximum(np.log2(sizes(queue)), 1.0) * queue.run_time)


def f1(queue: Queue) -> Floats:
    """F1: log₁₀ r · n + 870 · log₁₀ s (Carastan-Santos and de Camargo, SC'17), s the submission time.

    Made by regression on windows that start at 0, so s counts from the start of the window. The first second counts as
    second 1: log₁₀ 0 is not a number.
    """
    return np.log10(queue.run_time) * sizes(queue) + 870.0 * np.log10(np.maximum(queue.submit, 1.0))


def own_priority(queue: Queue) -> Floats:
    """Slurm's own order: in the daemon it leaves the queue as it is, and takes back what another policy has changed."""
    return -queue.priority


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule("fifo", attrgetter("submit"), "the earliest submission"),
            # Optimal for mean completion time on one machine (Smith 1956, as SPT).
            Rule("sjf", attrgetter("run_time"), "the smallest run time"),
            Rule("saf", area, "the smallest run time × GPUs"),
            Rule("wfp3", wfp3, "the largest (wait / run time)³ × GPUs", ages=True),
            Rule("unicep", unicep, "the largest wait / (log₂ GPUs × run time)", ages=True),
            Rule("f1", f1, "the smallest log₁₀ run time × GPUs + 870 × log₁₀ submission"),
            Rule("multifactor", own_priority, "the highest own priority", ages=True, ties_by_submission=False),
        )
    }
)


def by_name(name: str) -> Rule:
    """The rule called `name`; ConfigError names those that exist."""
    rule = RULES.get(name)
    if rule is None:
        raise ConfigError(f"there is no rule '{name}'; there are {', '.join(sorted(RULES))}")
    return rule
