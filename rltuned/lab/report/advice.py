"""Go, no go, or undecided: what the evidence of a period says, and why."""

import enum
import math
from collections.abc import Mapping
from typing import Any, Final

from rltuned.lab.evaluate.bootstrap import FEWEST, GUARDED, MOST_WORSE, Comparison
from rltuned.lab.evaluate.harm import ACCOUNTS, harms
from rltuned.lab.report.period import SOUND, Period

NEAR: Final = 0.2  # the replay is near to what happened where its mean wait differs by at most this share, …
CERTAINLY: Final = 0.5  # … and where the interval of their ratio ends within this share
METRICS: Final = {
    "wait_mean": "mean wait",
    "wait_p50": "median wait",
    "wait_p99": "99th percentile of the wait",
    "wait_max": "longest wait",
    "bsld_mean": "bounded slowdown",
    "jct_mean": "mean completion time",
    "utilization": "GPUs in use, %",
}
MOST_FAULTY: Final = 0.05  # share of the cycles that may fail, or be left out
LEAST_COVERED: Final = 0.8  # share of the period that the log must have
NO_WAIT: Final = 60.0  # seconds: where the mean wait is less, there is nothing to gain


class Advice(enum.StrEnum):
    """What to do."""

    GO = "go"
    NO_GO = "no-go"
    UNDECIDED = "undecided"


def advise(period: Period | None, replay: Mapping[str, Any] | None, mode: str = "shadow") -> dict[str, Any]:
    """The advice with its reasons (`weak`, `against` and `for` it: sentences).

    `replay`: as the report has it (`build`); None: the jobs were not replayed. `mode`: where rltuned writes, a short
    real wait is its own doing; Slurm's order is asked instead, replayed.
    """
    weak, against, good = [], [], []
    if period is None:
        weak.append("There is no decision log of this period, so nothing is known of how the daemon ran.")
    else:
        faulty = 1.0 - sum(period.cycles[name] for name in SOUND) / max(period.total, 1)
        if faulty > MOST_FAULTY:
            against.append(f"{faulty:.0%} of the cycles failed or were left out; find the cause first (see Faults).")
        else:
            good.append(f"The daemon ran soundly: {1 - faulty:.1%} of {period.total:,} cycles.")
        if period.coverage < LEAST_COVERED:
            weak.append(f"The log covers only {period.coverage:.0%} of the period.")
    if replay is None:
        weak.append("The period's jobs were not replayed, so nothing is known of what rltuned gains.")
    else:
        _judge(replay, "real" if mode == "shadow" else "slurm", weak, against, good)
    advice = Advice.NO_GO if against else Advice.UNDECIDED if weak else Advice.GO
    return {"advice": advice.value, "weak": weak, "against": against, "for": good}


def _judge(replay: Mapping[str, Any], without: str, weak: list[str], against: list[str], good: list[str]) -> None:
    nearness = replay["nearness"]
    if replay["blocks"] < FEWEST:
        few = f"The period has jobs for {replay['blocks']} blocks, and {FEWEST} are needed to be certain"
        weak.append(f"{few}: take a longer period.")
    if nearness["near"]:
        good.append(f"The simulator is near to what happened: {nearness['sentence']}")
    else:
        weak.append(f"The simulator is not near to what happened: {nearness['sentence']}")
    if replay["means"][without]["wait_mean"] < NO_WAIT:
        against.append("Jobs hardly wait on this cluster: there is nothing to gain.")
        return
    wait = Comparison(**replay["effect"]["wait_mean"])
    again = Comparison(**(replay["over_chance"] or replay["effect"]["wait_mean"]))  # one replay may be luck
    said = f"{in_words(wait)} times that of Slurm's order."
    if wait.ratio is None:
        weak.append("Nobody waits in the replay under Slurm's order, so there is no ratio.")
    elif wait.lower and not again.lower:
        other = f"once more with submissions up to a minute later: {in_words(again)}"
        weak.append(f"The mean wait is {said} It is not certainly lower than in that {other}.")
    elif wait.lower:
        good.append(f"The mean wait is certainly lower: {said}")
    elif wait.ratio < 1.0:
        weak.append(f"The mean wait is not certainly lower: {said}")
    else:
        against.append(f"The mean wait is not lower: {said}")
    for metric in GUARDED:
        one, name = Comparison(**replay["effect"][metric]), METRICS[metric]
        if one.ratio is not None and one.ratio > MOST_WORSE:
            against.append(f"The {name} is {in_words(one)} times that of Slurm's order, and {MOST_WORSE} is allowed.")
    own, chance = (
        {metric: math.nan if share is None else share for metric, share in replay["fairness"][of].items()}
        for of in ("rltuned", "chance")
    )
    against += [f"Accounts lose: {harm}." for harm in harms(own, {}, chance, ACCOUNTS)]


def in_words(compared: Comparison) -> str:
    """A ratio with its interval: 0.71 [0.62, 0.80]."""
    if compared.ratio is None:
        return "no ratio"
    if compared.lo is None and compared.hi is None:
        return f"{compared.ratio:.2f} (no interval)"
    low, high = ("?" if end is None else f"{end:.2f}" for end in (compared.lo, compared.hi))
    return f"{compared.ratio:.2f} [{low}, {high}]"
