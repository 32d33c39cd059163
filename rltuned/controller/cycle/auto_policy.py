"""The policy that a configuration names, loaded; where that is "auto", the one that a verdict of `rltuned gate` stands
for, if it stands at all.

A verdict counts for the model, the cluster and the time that it was made for (docs/good-for-us.md, decision 0093).
Nothing here raises for a verdict's sake: a daemon with a bad verdict runs, and says so.
"""

import enum
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from rltuned.core.config import DEFAULT_SHARE, Config, did_you_mean
from rltuned.core.errors import ConfigError, ModelError, RltunedError
from rltuned.core.tables import Snapshot
from rltuned.decide.rank import Policy, by_name
from rltuned.decide.rank.actor import Actor
from rltuned.decide.rank.heuristics import RULES
from rltuned.records import model_files as files
from rltuned.records import store
from rltuned.records.gate_verdict import DAY, MAX_BYTES, MODEL, SLURM, GateVerdict, parse_verdict

if TYPE_CHECKING:  # its metrics have a label for each `Standing`
    from rltuned.controller.cycle.runtime import Runtime

AUTO: Final = "auto"
OWN: Final = "multifactor"  # the rule that leaves Slurm's order as it is
SKEW: Final = DAY
"""Seconds: a verdict from further in the future was made by a clock that is wrong, or this one is."""


class Standing(enum.StrEnum):
    """What a verdict is worth now."""

    UNUSED = "unused"
    GOOD = "good"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    EXPIRED = "expired"
    OTHER_CLUSTER = "other-cluster"
    OTHER_MODEL = "other-model"
    """It chose the model, and the model is another one by now, or is refused."""


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


class Refused(NamedTuple):
    """Why there is no verdict."""

    standing: Standing
    why: str


class Model(NamedTuple):
    """The one that the configuration names."""

    actor: Actor
    sha256: str
    """Of its manifest."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A verdict as it was found, beside the model that the configuration names."""

    verdict: GateVerdict | Refused
    model: Model | ModelError

    def choose(self, now: float, gpus: int) -> Choice:
        """What to run at this time on a cluster of so many GPUs, drained ones included."""
        verdict = self.verdict
        if isinstance(verdict, Refused):
            return Choice(SLURM, verdict.standing, f"{verdict.why}; Slurm's own order stays")
        if now > verdict.expires or verdict.made_at > now + SKEW:
            when = f"ended {(now - verdict.expires) / DAY:.1f} days ago"
            if now <= verdict.expires:
                when = f"begins {(verdict.made_at - now) / DAY:.1f} days from now"
            return Choice(SLURM, Standing.EXPIRED, f"the verdict's time {when}; Slurm's own order stays")
        if not verdict.like(gpus):
            why = f"the verdict is about a cluster of {verdict.cluster.gpus} GPUs, and this one has {gpus}"
            return Choice(SLURM, Standing.OTHER_CLUSTER, f"{why}; Slurm's own order stays")
        if verdict.chosen != MODEL:
            return Choice(verdict.chosen, Standing.GOOD, verdict.reason, verdict.share)
        other = f"the verdict is about another model than the one there is ('{verdict.model.name}')"
        if (trouble := self.not_judged(verdict, other)) is not None:
            left = "Slurm's own order stays" if verdict.fallback == SLURM else f"the plain rule {verdict.fallback} runs"
            return Choice(verdict.fallback, Standing.OTHER_MODEL, f"{trouble}; {left}", verdict.fallback_share)
        return Choice(MODEL, Standing.GOOD, verdict.reason, verdict.share)

    def not_judged(self, verdict: GateVerdict, other: str) -> str | None:
        """Why the model is not the one of the verdict: it was refused, or is an`other`."""
        if isinstance(self.model, ModelError):
            return str(self.model)
        return None if self.model.sha256 == verdict.model.manifest_sha256 else other

    def refuse_bad(self) -> None:
        """Raise a ModelError where one of the two is there and cannot be used."""
        if isinstance(self.model, ModelError):
            raise self.model
        if isinstance(self.verdict, Refused) and self.verdict.standing is Standing.UNREADABLE:
            raise ModelError(self.verdict.why)


def evidence(config: Config) -> Evidence:
    """The verdict's file, and the model."""
    path = _file(config)
    verdict: GateVerdict | Refused
    try:
        verdict = _verdict(path)
    except FileNotFoundError:
        verdict = Refused(Standing.MISSING, f"{path}: there is no verdict")
    except OSError as error:
        verdict = Refused(Standing.UNREADABLE, f"{path}: cannot be read: {error.strerror or error}")
    except RltunedError as error:
        verdict = Refused(Standing.UNREADABLE, f"{path}: refused: {error}")
    try:
        return Evidence(verdict, _model(config))
    except ModelError as error:
        return Evidence(verdict, error)


def _model(config: Config) -> Model:
    """The model for what the site wants. ModelError: it is refused."""
    settings = config.policy
    actor = replace(files.load(settings.model), objective=settings.objective)
    return Model(actor, files.manifest_sha256(settings.model))


@dataclass(frozen=True)
class Loaded:
    """What the configuration names, as things are on disk now: nothing can fail in a cycle."""

    name: str
    policies: Mapping[str, Policy]  # by what a `Choice` runs
    evidence: Evidence | None = None  # which of several counts; None: there is one

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
        return Loaded.only(_model(config).actor)
    if name in RULES:
        return Loaded.only(by_name(name))
    if name != AUTO:
        known = (AUTO, MODEL, *sorted(RULES))
        meant = did_you_mean(name, known)
        raise ConfigError(f"policy.name: there is no policy '{name}'; there are {', '.join(known)}{meant}")
    found = evidence(config)
    policies: dict[str, Policy] = {SLURM: by_name(OWN)}
    if not isinstance(found.verdict, Refused):
        rules = {found.verdict.chosen, found.verdict.fallback} - {MODEL, SLURM}
        policies |= {rule: by_name(rule) for rule in rules}
    if isinstance(found.model, Model):
        policies[MODEL] = found.model.actor
    return Loaded(AUTO, policies, found)


def _file(config: Config) -> Path:
    model = config.policy.model
    return (config.state.directory if store.store_of(model) is None else Path(model).parent) / store.VERDICT_FILE


def understood(path: Path) -> str:
    """What a verdict's file has chosen, in a few words."""
    try:
        return _verdict(path).chosen
    except FileNotFoundError:
        return "none"
    except (OSError, RltunedError) as error:
        return f"unreadable ({error})"


def _verdict(path: Path) -> GateVerdict:
    """A verdict whose policies exist; else RltunedError or OSError."""
    # Non-blocking: a named pipe must not hold the daemon up. One byte more than is allowed, so that it shows.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = parse_verdict(file.read(MAX_BYTES + 1) or b"")
    if unknown := {found.chosen, found.fallback} - {MODEL, SLURM, *RULES}:
        raise RltunedError(f"there is no rule '{min(unknown)}'")
    return found


@dataclass
class PolicyChoice:
    """The policy in force."""

    runtime: "Runtime"
    policy: Loaded
    _chosen: Choice | None = None  # what the policy "auto" stood for in the last cycle
    _store: object = None
    """`store.mark` of the cycle before; None: there was none, or the policy is in no store."""

    def replace(self, policy: Loaded) -> None:
        """Put another policy into force."""
        self.policy, self._chosen = policy, None

    def follow_store(self) -> None:
        """Take what `rltuned learn` or `rltuned model use` has brought into force; a bad one leaves the old one.

        A version that changes while it is read shows another mark in the next cycle, and is read again.
        """
        config = self.runtime.config
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
        config, metrics, log = self.runtime.config, self.runtime.metrics, self.runtime.log
        policy, choice = self.policy.choose(snapshot)
        last, self._chosen = self._chosen, choice
        for one in Standing:
            metrics.verdict.labels(one.value).set(one is choice.standing)
        verdict = None if self.policy.evidence is None else self.policy.evidence.verdict
        metrics.verdict_end.set(verdict.expires if isinstance(verdict, GateVerdict) else math.nan)
        if last is not None and last._replace(why=choice.why) == choice:
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


def remedy(config: Config) -> str:
    """What to do about a verdict that is not good."""
    return f"rltuned gate --from-sacct 30 --out {_file(config)} && systemctl reload rltuned"
