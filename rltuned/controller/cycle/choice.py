"""What ranks the jobs of a cycle, and why; and what part of its wait a job lends."""

from dataclasses import replace
from typing import Final, NamedTuple, Self

from rltuned.controller.tell.states import Standing
from rltuned.core.config import DEFAULT_SHARE, Config
from rltuned.decide.rank.actor import Actor
from rltuned.records import model_files as files

STEPS: Final = (0.2, 0.5, 1.0)  # shares above the default that "auto" goes up by: the gate judges each
STEP_SECONDS: Final = 86_400.0  # on each at least: a verdict that is renewed every night looks at it


class Choice(NamedTuple):
    """What is run, and why."""

    runs: str  # `MODEL`, `SLURM`, or a rule's name
    standing: Standing
    why: str | None = None  # None: the configuration names it
    share: float = DEFAULT_SHARE
    """What a `lend.share` of "auto" goes to: that of the verdict, where that is gone by."""


class Share(NamedTuple):
    """The `lend.share` in force."""

    value: float
    since: float  # when it came into force, or no more was wanted last; by the clock that never jumps

    def toward(self, goal: float, now: float) -> Self:
        """What it is at this moment. To more than the default it goes by a step a day; where less is wanted, it was too
        much, and falls to the default at once, or to the less that is wanted.
        """
        if goal < self.value or self.value < DEFAULT_SHARE:
            return self._replace(value=min(goal, DEFAULT_SHARE), since=now)
        if goal == self.value or now < self.since:
            return self._replace(since=now)
        if now - self.since < STEP_SECONDS:
            return self
        return self._replace(value=min(goal, next(step for step in STEPS if step > self.value)), since=now)


def lent_by(choice: Choice, config: Config, held: Share | None, now: float) -> tuple[Share, Config]:
    """The share in force after `held`, if any was, and the configuration of a plan: "auto" has become that number."""
    lend = config.lend
    if not isinstance(lend.share, str):
        return Share(lend.share, now), config
    share = (held or Share(DEFAULT_SHARE, now)).toward(choice.share, now)
    return share, config.model_copy(update={"lend": lend.model_copy(update={"share": share.value})})


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
