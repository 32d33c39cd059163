"""What the daemon knows of slurmctld: its configuration, how it is, how much may be asked of it, and where it runs."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rltuned.controller.health.liveness import WatchedReader
from rltuned.controller.health.prerequisites import Finding, blocking, prerequisites
from rltuned.controller.health.primacy import Primacy
from rltuned.controller.health.rpc_budget import Breaker, Budget
from rltuned.controller.health.runtime import Cause, Refusal, Runtime
from rltuned.core.errors import JournalError, SlurmError
from rltuned.core.scheduler import Health
from rltuned.core.tables import Snapshot
from rltuned.slurm.port import ClusterFacts, Privilege

FACTS_SECONDS: Final = 300.0
"""How long facts of the cluster are taken for true when nothing hints at a change."""


class Slurmctld:
    """One cluster's controller, as far as it was read."""

    def __init__(
        self,
        runtime: Runtime,
        refuse_other: Callable[[str], None],
        reader: WatchedReader,
        primacy: Primacy,
        rng: random.Random,
    ) -> None:
        """`refuse_other`: raises JournalError where what is known is of another cluster than the one of this name."""
        self._runtime, self._refuse_other, self._reader, self._rng = runtime, refuse_other, reader, rng
        self.primacy = primacy
        self.facts: ClusterFacts | None = None
        self.lacking: list[Finding] = []  # prerequisites that keep the daemon from writing
        self.unavailable = False  # it does not even answer a ping
        self.breaker = self._new_breaker()
        self.budget = Budget.of(runtime.config.write, None)
        self._facts_at, self._counts_since = float("-inf"), -1

    def _new_breaker(self) -> Breaker:
        return Breaker(self._runtime.config.cycle.interval, self._rng)

    def reconfigured(self) -> None:
        """Take in a new configuration of the daemon's."""
        self.forget_facts()
        if self.facts is not None:
            self.lacking = blocking(prerequisites(self.facts, self._runtime.config))
        self.breaker = self._new_breaker()
        self._set_budget()

    # --- its configuration

    def forget_facts(self) -> None:
        """Read them anew at the next opportunity."""
        self._facts_at = float("-inf")

    def refresh_facts(self) -> bool:
        """Read the facts anew where they are old or doubtful. Whether a prerequisite is now met. SlurmError, and
        JournalError as `refuse_other`; so all that reads facts.
        """
        now, old = self._runtime.clock.monotonic(), self.facts
        doubtful = self.lacking or (old is not None and old.accounting and not old.accounting_reachable)
        if now - self._facts_at < FACTS_SECONDS and not doubtful:
            return False
        facts = self._reader.facts()
        self._facts_at = now
        known = old is not None and old.privilege is not Privilege.NONE
        if old is not None and known and facts.accounting and not facts.accounting_reachable:
            # slurmdbd is away for a while; slurmctld remembers the privilege and each QOS, and so do we.
            facts = replace(facts, privilege=old.privilege, preempts_by=old.preempts_by)
        return self._take_in(facts)

    def hint(self, health: Health) -> None:
        """Read the facts anew where slurmctld was started, or reconfigured, since the last reading."""
        before, self._counts_since = self._counts_since, health.since
        if before not in {-1, health.since}:
            self.forget_facts()
            self.refresh_facts()

    def against(self) -> Refusal | None:
        """What stands against writing by slurm.conf as it is now."""
        self._take_in(self._reader.facts(self.facts))
        return self.refusal

    @property
    def refusal(self) -> Refusal | None:
        """What stands against writing by slurm.conf as it was read last."""
        causes = "; ".join(finding.cause for finding in self.lacking)
        return Refusal(Cause.PREREQUISITE, causes) if causes else None

    def _take_in(self, facts: ClusterFacts) -> bool:
        """Whether a prerequisite is now met."""
        before = {finding.cause for finding in self.lacking}
        self.facts = facts
        self.refuse_other()
        self.lacking = blocking(prerequisites(facts, self._runtime.config))
        for finding in self.lacking:
            if finding.cause not in before:
                self._runtime.log.error(
                    "prerequisite.missing", subject=finding.subject, cause=finding.cause, remedy=finding.remedy
                )
        self._runtime.metrics.blocked.set(len(self.lacking))
        self._set_budget()
        return bool(before - {finding.cause for finding in self.lacking})

    def _set_budget(self) -> None:
        fresh = Budget.of(self._runtime.config.write, self.facts)
        if fresh != self.budget:  # what is left in the bucket does not count
            self.budget = fresh
            self.budget.spend(0, self._runtime.clock.monotonic())

    def refuse_other(self) -> None:
        """Raise JournalError where the journal is of another cluster than the one that answered last."""
        if self.facts is None:
            return
        try:
            self._refuse_other(self.facts.cluster_name)
        except JournalError:
            self.forget_facts()
            raise

    # --- how it is

    def overloaded(self, snapshot: Snapshot) -> Refusal | None:
        """Why nothing may be asked of it that can wait."""
        health, limits = snapshot.health, self._runtime.config.write
        if health.server_threads > limits.max_server_threads:
            return Refusal(Cause.OVERLOADED, f"slurmctld has {health.server_threads} busy threads")
        if health.agent_queue > limits.max_agent_queue:
            return Refusal(Cause.OVERLOADED, f"slurmctld has {health.agent_queue} messages waiting")
        return None

    def may_be_asked(self) -> bool:
        """Whether a cycle may run: the breaker is closed, or slurmctld, whose silence opened it, answers a ping."""
        if self.breaker.allow(self._runtime.clock.monotonic()):
            return True
        if not self.unavailable or not self.answers():
            return False
        self.breaker.probe()
        return True

    def answers(self) -> bool:
        """Whether it answers the cheapest question."""
        try:
            self._reader.ping()
        except SlurmError:
            return False
        return True

    # --- where it runs

    def elsewhere(self) -> bool:
        """Whether slurmctld runs on another host now, if that is a question. SlurmError: nobody can be asked."""
        facts, primacy = self.facts, self.primacy
        if facts is None or not primacy.concerns(facts.controllers):
            return False
        changed = primacy.look(self._reader.controllers(facts), self._runtime.clock.monotonic())
        self._runtime.metrics.standby.set(primacy.stands_by)
        if changed:
            gains, loses = "This daemon writes, once it may.", "What this daemon has written is given back."
            doing = loses if primacy.stands_by else gains
            self._runtime.log.warning("primacy.changed", sentence=f"slurmctld runs on {primacy.acting}. {doing}")
        return primacy.stands_by
