"""What a policy answers."""

from typing import Protocol

from rltuned.cluster.tables import Floats
from rltuned.observe.observation import Observation


class Policy(Protocol):
    """Ranks the visible jobs."""

    @property
    def name(self) -> str:
        """As in the configuration and in metrics."""

    def score(self, observation: Observation) -> Floats:
        """(n,) scores, finite, higher first. Must not depend on the order of the rows."""
