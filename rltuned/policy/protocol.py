"""What a policy answers, and the little of a queue that a plain rule needs."""

from dataclasses import dataclass
from typing import Protocol

from rltuned.cluster.tables import Floats
from rltuned.observe.observation import Observation


class Queue(Protocol):
    """n pending jobs as plain rules see them: (n,) columns, finite but for `time_limit`.

    `Observation` is one; the simulator has a lighter one, without the features of the learned policies.
    """

    @property
    def run_time(self) -> Floats:
        """Estimated run time r, seconds, at least 1."""

    @property
    def time_limit(self) -> Floats:
        """Seconds, infinite when unlimited."""

    @property
    def gpus(self) -> Floats:
        """GPUs in all, 0 for a CPU job."""

    @property
    def wait(self) -> Floats:
        """Seconds since eligible, not negative."""

    @property
    def submit(self) -> Floats:
        """Submission, seconds since a moment that is the same for all jobs; not negative."""

    @property
    def priority(self) -> Floats:
        """What Slurm alone would give: multifactor's priority without the site factor, higher first."""


@dataclass(frozen=True)
class QueueView:
    """A `Queue` of these columns."""

    run_time: Floats
    time_limit: Floats
    gpus: Floats
    wait: Floats
    submit: Floats
    priority: Floats


class Policy(Protocol):
    """Ranks the visible jobs."""

    @property
    def name(self) -> str:
        """As in the configuration and in metrics."""

    def score(self, observation: Observation) -> Floats:
        """(n,) scores, finite, higher first. Must not depend on the order of the rows."""
