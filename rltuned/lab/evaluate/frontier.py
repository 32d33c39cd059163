"""The frontier: what each share of its wait that a waiting job lends gains, and whom that harms (docs/good-for-us.md).

Each share is simulated with the best plain rule and with the model, as the daemon serves them, beside Slurm's own order
and chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from rich.table import Table

from rltuned.core.errors import EvaluationError
from rltuned.core.objective import DEFAULT, Objective
from rltuned.lab.evaluate.bootstrap import Comparison, compare, counts, mean, simultaneous
from rltuned.lab.evaluate.evaluation_settings import AGAIN, OWN, is_learned, served, with_share
from rltuned.lab.evaluate.harm import Harm, harms
from rltuned.lab.evaluate.measure import Measured
from rltuned.lab.evaluate.window_metrics import AGAINST_SLURM

SHARES: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
RULE: Final = "saf"  # the best plain rule where run times are predicted: smallest area first
ORDERS: Final = (RULE, "rl")
TESTED: Final = "wait_mean"
RATIOS: Final = (TESTED, "bsld_mean", "wait_p99", "utilization")
"""Metrics that are told as ratios to Slurm's own order."""


def contenders(shares: Sequence[float] = SHARES) -> tuple[str, ...]:
    """Names of the policies: Slurm's own order, that once more, and each order with each share."""
    return (OWN, AGAIN, *(with_share(order, share) for order in ORDERS for share in shares))


def parse_shares(text: str) -> tuple[float, ...]:
    """Of "0,.05,.1", from low to high. EvaluationError: no numbers from 0 to 1."""
    try:
        shares = sorted({float(part) for part in text.split(",")})
    except ValueError:
        shares = []
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):
        raise EvaluationError(f"--shares: '{text}' is no list of numbers from 0 to 1, as 0,.05,.1,.2,.5,1")
    return tuple(shares)


@dataclass(frozen=True)
class Point:
    """One policy with one share, or chance, over Slurm's own order."""

    policy: str  # a rule's name, `rl`, or `AGAIN`
    share: float | None  # None: of chance
    ratios: Mapping[str, Comparison]  # by metric of `RATIOS`
    means: Mapping[str, float]  # by metric of `AGAINST_SLURM`; infinite: not known
    objective: float
    """J of the means over the windows: a mean of each window's own J would rest on windows in which hardly anybody
    waits."""
    certain: bool
    """It waits certainly less than Slurm's own order, and than that once more, by intervals that hold for all points at
    once."""
    harms: tuple[Harm, ...]  # bounds that it does not keep

    @property
    def name(self) -> str:
        """Of the policy of the evaluation."""
        return self.policy if self.share is None else with_share(self.policy, self.share)

    @property
    def learned(self) -> bool:
        """Whether the model ranks."""
        return is_learned(self.policy)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        known = {metric: value if np.isfinite(value) else None for metric, value in self.means.items()}
        ratios = {metric: asdict(one) for metric, one in self.ratios.items()}
        broken = [harm._asdict() for harm in self.harms]
        objective = self.objective if np.isfinite(self.objective) else None
        about = {"policy": self.policy, "share": self.share, "objective": objective, "certain": self.certain}
        return {**about, "harms": broken, **ratios, **known}


def points(measured: Mapping[str, Measured], seed: int, objective: Objective = DEFAULT) -> tuple[list[Point], Point]:
    """All of them, and chance, of the same windows by policy; `seed`: of the resamples."""
    names = [name for name in measured if served(name)[1] is not None]
    slurm, drawn = measured[OWN], counts(len(measured[OWN][TESTED]), seed)
    means = {name: {metric: mean(values) for metric, values in of.items()} for name, of in measured.items()}
    # What is less than Slurm's own order may be luck of that: a minute at the beginning moves all that follows.
    ends = [simultaneous(np.array([measured[name][TESTED] for name in (*names, of)]), drawn) for of in (OWN, AGAIN)]
    upper = dict(zip(names, np.maximum(*ends), strict=True))
    lower = min(means[OWN][TESTED], means[AGAIN][TESTED])

    def point(name: str) -> Point:
        policy, share = served(name)
        return Point(
            policy=policy,
            share=share,
            ratios={metric: compare(measured[name][metric], slurm[metric], drawn) for metric in RATIOS},
            means={metric: means[name][metric] for metric in AGAINST_SLURM},
            objective=objective.of(means[name], means[OWN]),
            certain=share is not None and bool(upper[name] <= 1.0 and means[name][TESTED] < lower),
            harms=() if share is None else tuple(harms(means[name], means[OWN], means[AGAIN])),
        )

    return [point(name) for name in names], point(AGAIN)


# --- for people

_SHOWN: Final = (
    ("accounts_worse", "accounts worse off", 2),
    ("worst_tenth", "worst tenth", 1),
    ("late", "late", 3),
    ("wait_ratio_p95", "p95 of wait ratio", 1),
)


def table(rows: Sequence[Point], chance: Point, title: str, best: Point | None) -> Table:
    """The points and chance; the chosen one is bold."""
    shown = Table(
        title=title,
        caption="All over Slurm's own order; in brackets: by chance. worst tenth: of accounts, by (mean wait + 5 min). "
        "late: share of the jobs that start an hour and a tenth of their wait later.",
        caption_justify="left",
    )
    shown.add_column("policy")
    headings = ("lends", "wait", "slowdown", "p99", "GPUs", "J", *(heading for _, heading, _ in _SHOWN))
    for heading in headings:
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for row in (*rows, chance):
        shown.add_row(
            row.policy,
            "" if row.share is None else f"{row.share:g}",
            *(_interval(row.ratios[metric]) for metric in RATIOS[:2]),
            *(_cell(row.ratios[metric].ratio, 2) for metric in RATIOS[2:]),
            _cell(row.objective, 2),
            *(
                f"{_cell(row.means[metric], digits)} ({_cell(chance.means[metric], digits)})"
                for metric, _, digits in _SHOWN
            ),
            _words(row),
            style="bold" if row is best else "",
        )
    return shown


def _words(row: Point) -> str:
    if row.share is None:
        return "chance"
    certain = "certainly waits less" if row.certain else "not certain"
    broken = ", ".join(harm.words for harm in row.harms)
    return f"{certain}; not allowed: {broken}" if broken else f"{certain}; harms nobody"


def _interval(compared: Comparison) -> str:
    return f"{_cell(compared.ratio, 2)} [{_cell(compared.lo, 2)}, {_cell(compared.hi, 2)}]"


def _cell(value: float | None, digits: int) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:.{digits}f}"
