"""`policy.name = "auto"`: which policy a verdict of `rltuned gate` stands for, and whether it stands at all.

A verdict counts for the model, the cluster and the time that it was made for (docs/good-for-us.md, decision 0093).
Nothing here raises for a verdict's sake: a daemon with a bad verdict runs, and says so.
"""

import enum
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from rltuned.core.config import DEFAULT_SHARE, Config, PolicySection
from rltuned.core.errors import ModelError, RltunedError
from rltuned.core.tables import Snapshot
from rltuned.decide.rank import Policy, by_name
from rltuned.decide.rank.actor import Actor
from rltuned.decide.rank.heuristics import RULES
from rltuned.records import model_files as files
from rltuned.records.gate_verdict import DAY, MAX_BYTES, MODEL, SLURM, GateVerdict, parse_verdict
from rltuned.records.store import VERDICT_FILE, store_of

AUTO: Final = "auto"
OWN: Final = "multifactor"
"""The rule that leaves Slurm's order as it is."""
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

    runs: str
    """`MODEL`, `SLURM`, or a rule's name."""
    standing: Standing
    why: str
    share: float = DEFAULT_SHARE
    """What a `lend.share` of "auto" stands for: that of the verdict, where that is gone by."""

    def applied(self, config: Config) -> Config:
        """The configuration that a plan gets: a `lend.share` of "auto" has become a number."""
        if not isinstance(config.lend.share, str):
            return config
        return config.model_copy(update={"lend": config.lend.model_copy(update={"share": self.share})})


@dataclass(frozen=True, slots=True)
class Reading:
    """A verdict as it was found, beside the model that the configuration names."""

    verdict: GateVerdict | None
    standing: Standing
    """`GOOD`, `MISSING` or `UNREADABLE`: what time and cluster do not change."""
    trouble: str
    """Why there is no verdict; "" where there is one."""
    model_sha256: str
    """Of the model's manifest; "" when it was refused."""
    model_trouble: str

    def choose(self, now: float, gpus: int) -> Choice:
        """What to run at this time on a cluster of so many GPUs, drained ones included."""
        verdict = self.verdict
        if verdict is None:
            return Choice(SLURM, self.standing, f"{self.trouble}; Slurm's own order stays")
        if now > verdict.expires or verdict.made_at > now + SKEW:
            when = f"ended {(now - verdict.expires) / DAY:.1f} days ago"
            if now <= verdict.expires:
                when = f"begins {(verdict.made_at - now) / DAY:.1f} days from now"
            return Choice(SLURM, Standing.EXPIRED, f"the verdict's time {when}; Slurm's own order stays")
        if not verdict.like(gpus):
            why = f"the verdict is about a cluster of {verdict.gpus} GPUs, and this one has {gpus}"
            return Choice(SLURM, Standing.OTHER_CLUSTER, f"{why}; Slurm's own order stays")
        if verdict.chosen != MODEL:
            return Choice(verdict.chosen, Standing.GOOD, verdict.reason, verdict.share)
        left = "Slurm's own order stays" if verdict.fallback == SLURM else f"the plain rule {verdict.fallback} runs"
        if self.model_sha256 != verdict.model_sha256:
            why = self.model_trouble or f"the verdict is about another model than the one there is ('{verdict.model}')"
            return Choice(verdict.fallback, Standing.OTHER_MODEL, f"{why}; {left}", verdict.fallback_share)
        return Choice(MODEL, Standing.GOOD, verdict.reason, verdict.share)


def read(config: Config) -> Reading:
    """The verdict's file, and the sha256 of the model's manifest."""
    sha256 = trouble = ""
    try:
        files.load(config.policy.model)
        sha256 = files.manifest_sha256(config.policy.model)
    except ModelError as error:
        trouble = str(error)
    path, found, standing, why = _file(config), None, Standing.UNREADABLE, ""
    try:
        found, standing = _verdict(path), Standing.GOOD
    except FileNotFoundError:
        standing, why = Standing.MISSING, f"{path}: there is no verdict"
    except OSError as error:
        why = f"{path}: cannot be read: {error.strerror or error}"
    except RltunedError as error:
        why = f"{path}: refused: {error}"
    return Reading(found, standing, why, sha256, trouble)


def _file(config: Config) -> Path:
    model = config.policy.model
    return (config.state.directory if store_of(model) is None else Path(model).parent) / VERDICT_FILE


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


class Auto:
    """The policies that the configured verdict may stand for, as things are on disk now, and which of them it is."""

    name = AUTO

    def __init__(self, config: Config) -> None:
        """Each policy is loaded now, so that none can fail in a cycle."""
        self.reading = read(config)
        verdict = self.reading.verdict
        wanted = {SLURM} | ({verdict.chosen, verdict.fallback} if verdict is not None else set())
        if self.reading.model_trouble:
            wanted.discard(MODEL)
        self.policies: dict[str, Policy] = {
            runs: served(config.policy) if runs == MODEL else by_name(OWN if runs == SLURM else runs) for runs in wanted
        }


def served(settings: PolicySection) -> Actor:
    """The model that is configured, for what the site wants. Raises ModelError."""
    return replace(files.load(settings.model), objective=settings.objective)


def chosen(policy: Policy | Auto, snapshot: Snapshot) -> tuple[Policy, Choice]:
    """What ranks the jobs of this snapshot: the policy itself, or the one that "auto" stands for now."""
    if not isinstance(policy, Auto):
        return policy, Choice(policy.name, Standing.UNUSED, "")
    choice = policy.reading.choose(snapshot.time, int(snapshot.nodes.gpus.sum()))
    return policy.policies[choice.runs], choice


def remedy(config: Config) -> str:
    """What to do about a verdict that is not good."""
    return f"rltuned gate --from-sacct 30 --out {_file(config)} && systemctl reload rltuned"
