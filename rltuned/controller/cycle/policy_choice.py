"""Which policy ranks: the one that the configuration names, kept up to date with the model store and the verdict."""

import math
from dataclasses import dataclass

from rltuned.controller.cycle.auto_policy import AUTO, Auto, Choice, Standing, chosen, remedy, served
from rltuned.controller.cycle.runtime import Runtime
from rltuned.controller.tell.metrics import show
from rltuned.core.config import Config, did_you_mean
from rltuned.core.errors import ConfigError, RltunedError
from rltuned.core.tables import Snapshot
from rltuned.decide.rank import Policy, by_name
from rltuned.decide.rank.heuristics import RULES
from rltuned.records import store
from rltuned.records.gate_verdict import MODEL


def load_policy(config: Config) -> Policy | Auto:
    """Load the policy that the configuration names; ModelError, ConfigError where there is none. Never for "auto"."""
    settings = config.policy
    if settings.name == AUTO:
        return Auto(config)
    if settings.name == MODEL:
        return served(settings)
    known = (AUTO, MODEL, *sorted(RULES))
    if settings.name not in known:
        meant = did_you_mean(settings.name, known)
        raise ConfigError(f"policy.name: there is no policy '{settings.name}'; there are {', '.join(known)}{meant}")
    return by_name(settings.name)


@dataclass
class PolicyChoice:
    """The policy in force."""

    runtime: Runtime
    policy: Policy | Auto
    _chosen: Choice | None = None
    """What the policy "auto" stood for in the last cycle."""
    _store: object = None
    """`store.mark` of the cycle before; None: there was none, or the policy is in no store."""

    def replace(self, policy: Policy | Auto) -> None:
        """Put another policy into force."""
        self.policy, self._chosen = policy, None

    def follow_store(self) -> None:
        """Take what `rltuned learn` or `rltuned model use` has brought into force; a bad one leaves the old one.

        A version that changes while it is read shows another mark in the next cycle, and is read again.
        """
        config, why = self.runtime.config, ""
        section = config.policy
        seen = store.mark(section.model) if section.name in {AUTO, MODEL} else None
        if seen == self._store:
            return
        self._store, number = seen, store.number_of(section.model)
        metrics, log = self.runtime.metrics, self.runtime.log
        metrics.model_version.set(number)
        if seen is None:
            return
        try:
            policy = load_policy(config)
        except RltunedError as error:
            why = str(error)
        else:
            if isinstance(policy, Auto):
                reading = policy.reading
                why = reading.model_trouble or (reading.trouble if reading.standing is Standing.UNREADABLE else "")
        if why:
            metrics.reloads.labels("refused").inc()
            log.error("model.refused", sentence="The old model stays in force.", reason=why)
            return
        self.replace(policy)
        metrics.reloads.labels("applied").inc()
        log.info("model.taken", sentence=f"The model store's version {number} is in force.", version=number)

    def choose(self, snapshot: Snapshot) -> tuple[Policy, Choice]:
        """Return the policy of this cycle; what "auto" has become is said once."""
        config, metrics, log = self.runtime.config, self.runtime.metrics, self.runtime.log
        policy, choice = chosen(self.policy, snapshot)
        last, self._chosen = self._chosen, choice
        show(metrics.verdict, choice.standing)
        verdict = self.policy.reading.verdict if isinstance(self.policy, Auto) else None
        metrics.verdict_end.set(math.nan if verdict is None else verdict.expires)
        if last is not None and last[:2] == choice[:2] and last.share == choice.share:
            return policy, choice
        if choice.standing is Standing.GOOD:
            log.info("policy.chosen", sentence=f"Policy '{policy.name}': {choice.why}")
        elif choice.standing is not Standing.UNUSED:
            log.warning(
                "verdict.not_used",
                sentence=f"Policy '{policy.name}': {choice.why}.",
                standing=choice.standing.value,
                remedy=remedy(config),
            )
        return policy, choice
