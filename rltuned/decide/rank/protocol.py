"""What a policy answers, and the little of a queue that a plain rule needs."""

from dataclasses import dataclass
from typing import Protocol

from rltuned.core.tables import Floats
from rltuned.decide.see.observation import Observation


@dataclass(frozen=True)
class QueueView:
    """n pending jobs as plain rules see them, without the features of the learned policies.

    (n,) columns, finite but for `time_limit`; an `Observation` has them too.
    """

    run_time: Floats  # estimated run time r, seconds, at least 1
    time_limit: Floats  # seconds, infinite when unlimited
    gpus: Floats
    """GPUs that it takes in all (`rltuned.core.taken`), 0 for a CPU job that shares its nodes."""
    wait: Floats  # seconds since eligible, not negative
    submit: Floats  # submission, seconds since a moment that is the same for all jobs; not negative
    priority: Floats
    """What Slurm alone would give: multifactor's priority without the site factor, higher first."""


Queue = QueueView | Observation


class Policy(Protocol):
    """Ranks the visible jobs."""

    @property
    def name(self) -> str:
        """As in the configuration and in metrics."""

    def score(self, observation: Observation) -> Floats:
        """(n,) scores, finite, higher first. Must not depend on the order of the rows."""
