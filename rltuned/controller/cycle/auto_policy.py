"""What the policy "auto" stands for: what a verdict of `rltuned gate` has chosen, if it stands at all.

A verdict counts for the model, the cluster and the time that it was made for (docs/good-for-us.md, decision 0093).
Nothing here raises for a verdict's sake: a daemon with a bad verdict runs, and says so.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rltuned.controller.cycle.choice import Choice, ConfiguredModel, model_of
from rltuned.controller.tell.states import Standing
from rltuned.core.config import MODEL, Config
from rltuned.core.errors import ModelError, RltunedError
from rltuned.decide.rank import Policy, by_name
from rltuned.decide.rank.heuristics import RULES
from rltuned.records.gate_verdict import DAY, MAX_BYTES, SLURM, GateVerdict, parse_verdict, verdict_file

OWN: Final = "multifactor"  # the rule that leaves Slurm's order as it is
SKEW: Final = DAY
"""Seconds: a verdict from further in the future was made by a clock that is wrong, or this one is."""


class Refused(NamedTuple):
    """Why there is no verdict."""

    standing: Standing
    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A verdict as it was found, beside the model that the configuration names."""

    path: Path
    verdict: GateVerdict | Refused
    model: ConfiguredModel | ModelError

    @property
    def ends(self) -> float:
        """When the verdict does, epoch seconds; NaN: there is none."""
        return self.verdict.expires if isinstance(self.verdict, GateVerdict) else math.nan

    @property
    def remedy(self) -> str:
        """What to do about a verdict that is not good."""
        return f"rltuned gate --from-sacct 30 --out {self.path} && systemctl reload rltuned"

    def policies(self) -> dict[str, Policy]:
        """All that may be run, by what a `Choice` runs."""
        found: dict[str, Policy] = {SLURM: by_name(OWN)}
        if not isinstance(self.verdict, Refused):
            rules = {self.verdict.chosen, self.verdict.fallback} - {MODEL, SLURM}
            found |= {rule: by_name(rule) for rule in rules}
        if isinstance(self.model, ConfiguredModel):
            found[MODEL] = self.model.actor
        return found

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
    path = verdict_file(config.policy.model, config.state.directory)
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
        return Evidence(path, verdict, model_of(config))
    except ModelError as error:
        return Evidence(path, verdict, error)


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
