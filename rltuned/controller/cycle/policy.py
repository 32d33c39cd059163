"""The policy that a configuration names, loaded, and the one in force."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rltuned.controller.cycle.choice import Choice, model_of
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.tell.states import Standing
from rltuned.core.config import AUTO, MODEL, Config, did_you_mean
from rltuned.core.errors import ConfigError, RltunedError
from rltuned.core.tables import Snapshot
from rltuned.decide.rank import Policy, by_name
from rltuned.decide.rank.heuristics import RULES
from rltuned.records import in_force

if TYPE_CHECKING:  # see `load_policy`
    from rltuned.controller.cycle.auto_policy import Evidence


@dataclass(frozen=True)
class Loaded:
    """What the configuration names, as things are on disk now: nothing can fail in a cycle."""

    name: str
    policies: Mapping[str, Policy]  # by what a `Choice` runs
    evidence: "Evidence | None" = None  # which of several counts; None: there is one

    @classmethod
    def only(cls, policy: Policy) -> Self:
        """This one, whatever the evidence says."""
        return cls(policy.name, {policy.name: policy})

    def choose(self, snapshot: Snapshot) -> tuple[Policy, Choice]:
        """What ranks the jobs of this snapshot."""
        choice = Choice(self.name, Standing.UNUSED)
        if self.evidence is not None:
            choice = self.evidence.choose(snapshot.time, int(snapshot.nodes.gpus.sum()))
        return self.policies[choice.runs], choice


def load_policy(config: Config) -> Loaded:
    """The policy that the configuration names. ConfigError, ModelError: there is none; never for "auto"."""
    name = config.policy.name
    if name == MODEL:
        return Loaded.only(model_of(config).actor)
    if name in RULES:
        return Loaded.only(by_name(name))
    if name != AUTO:
        known = (AUTO, MODEL, *sorted(RULES))
        meant = did_you_mean(name, known)
        raise ConfigError(f"policy.name: there is no policy '{name}'; there are {', '.join(known)}{meant}")
    # Only here: by default no verdict is asked.
    from rltuned.controller.cycle.auto_policy import evidence  # noqa: PLC0415

    found = evidence(config)
    return Loaded(AUTO, found.policies(), found)


@dataclass
class PolicyChoice:
    """The policy in force."""

    runtime: Runtime
    policy: Loaded
    _chosen: Choice | None = None  # what the policy "auto" stood for in the last cycle
    _store: object = None
    """`in_force.mark` of the cycle before; None: there was none, or the policy is in no store."""

    def replace(self, policy: Loaded) -> None:
        """Put another policy into force."""
        self.policy, self._chosen = policy, None

    def follow_store(self) -> None:
        """Take what `rltuned learn` or `rltuned model use` has brought into force; a bad one leaves the old one.

        A version that changes while it is read shows another mark in the next cycle, and is read again.
        """
        config = self.runtime.config
        section = config.policy
        seen = in_force.mark(section.model) if section.name in {AUTO, MODEL} else None
        if seen == self._store:
            return
        self._store, number = seen, in_force.number_of(section.model)
        metrics, log = self.runtime.metrics, self.runtime.log
        metrics.model_version.set(number)
        if seen is None:
            return
        try:
            policy = load_policy(config)
            if policy.evidence is not None:
                policy.evidence.refuse_bad()
        except RltunedError as error:
            metrics.reloads.labels("refused").inc()
            log.error("model.refused", sentence="The old model stays in force.", reason=str(error))  # noqa: TRY400
            return
        self.replace(policy)
        metrics.reloads.labels("applied").inc()
        log.info("model.taken", sentence=f"The model store's version {number} is in force.", version=number)

    def choose(self, snapshot: Snapshot) -> tuple[Policy, Choice]:
        """Return the policy of this cycle; what "auto" has become is said once."""
        metrics, log = self.runtime.metrics, self.runtime.log
        policy, choice = self.policy.choose(snapshot)
        last, self._chosen = self._chosen, choice
        for one in Standing:
            metrics.verdict.labels(one.value).set(one is choice.standing)
        evidence = self.policy.evidence
        metrics.verdict_end.set(math.nan if evidence is None else evidence.ends)
        if last is not None and last._replace(why=choice.why) == choice:
            return policy, choice
        if choice.standing is Standing.GOOD:
            log.info("policy.chosen", sentence=f"Policy '{policy.name}': {choice.why}")
        elif evidence is not None:
            log.warning(
                "verdict.not_used",
                sentence=f"Policy '{policy.name}': {choice.why}.",
                standing=choice.standing.value,
                remedy=evidence.remedy,
            )
        return policy, choice
