"""What ranks the jobs of a cycle, and why."""

from dataclasses import replace
from typing import NamedTuple

from rltuned.controller.tell.states import Standing
from rltuned.core.config import DEFAULT_SHARE, Config
from rltuned.decide.rank.actor import Actor
from rltuned.records import model_files as files


class Choice(NamedTuple):
    """What is run, and why."""

    runs: str  # `MODEL`, `SLURM`, or a rule's name
    standing: Standing
    why: str | None = None  # None: the configuration names it
    share: float = DEFAULT_SHARE
    """What a `lend.share` of "auto" stands for: that of the verdict, where that is gone by."""

    def applied(self, config: Config) -> Config:
        """The configuration that a plan gets: a `lend.share` of "auto" has become a number."""
        if not isinstance(config.lend.share, str):
            return config
        return config.model_copy(update={"lend": config.lend.model_copy(update={"share": self.share})})


class ConfiguredModel(NamedTuple):
    """The one that the configuration names."""

    actor: Actor
    sha256: str
    """Of its manifest."""


def model_of(config: Config) -> ConfiguredModel:
    """The model for what the site wants. ModelError: it is refused."""
    settings = config.policy
    actor = replace(files.load(settings.model), objective=settings.objective)
    return ConfiguredModel(actor, files.manifest_sha256(settings.model))
