"""What a better order could gain at a site, measured before training.

The rule that a model would correct is measured on windows of the trace, then with one thing changed at a time: with the
estimates as they are, with the true run times, with waiting counted more or less (`rltuned.policy.actor.AGEING`), and
with a small reward or penalty on each column that a network would see. Where no change of a column gains anything, a
network of these columns is not likely to. What only the true run times gain has to come from better estimates.

There are no rollouts: this is about the score of single jobs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from rltuned.cluster.tables import Floats, Singles
from rltuned.evaluate.bootstrap import Comparison, compare, counts
from rltuned.evaluate.case import Case, cases
from rltuned.evaluate.windows import Split, draw
from rltuned.learn.curriculum import Site
from rltuned.learn.sampling import episode
from rltuned.learn.warm import rule_alone, run_time_coefficients
from rltuned.observe.features import known_run_times
from rltuned.observe.sampling import STATE_COLUMNS
from rltuned.policy.actor import AGEING, RUN_TIME, Actor
from rltuned.simulate.episodes import Network
from rltuned.workers.pool import WorkerPool
from rltuned.workers.progress import Progress, silent
from rltuned.workload.estimates import estimate
from rltuned.workload.jobs import Estimates

METRICS: Final = ("wait_mean", "bsld_mean", "wait_p99")
AGEINGS: Final = (0.15, 0.3, 0.6, 1.0)
NUDGES: Final = (-0.1, -0.03, 0.03, 0.1)
"""On the scale of scores, for a column at its largest: 0.03 is a factor of 1.6 in the rule's key, 0.1 one of 4.4."""
REFERENCE: Final = "expected run times"


@dataclass(frozen=True)
class Variant:
    """The rule with one thing changed."""

    name: str
    actor: Actor
    informed: bool = False
    """Whether it knows the true run times."""


@dataclass(frozen=True)
class VariantsTask:
    """A window, and the variants to measure on it."""

    case: Case
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class VariantResult:
    """A variant relative to the reference, the rule on expected run times: ratios of means over the same windows."""

    name: str
    ratios: dict[str, Comparison]
    """By `METRICS`."""


@dataclass(frozen=True)
class Headroom:
    """What was found on a trace."""

    windows: int
    coefficients: tuple[float, float, float]
    """c0, c1, c2 of `Actor.expected_run_time`, fitted on windows of the same part that are drawn with another seed (of
    a short trace they overlap)."""
    found: tuple[VariantResult, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def variants(rule: str, coefficients: Singles) -> tuple[Variant, ...]:
    """What is compared; the first is the reference."""
    knowing = {RUN_TIME: coefficients}
    reference = rule_alone(rule, knowing)
    found = [Variant(REFERENCE, reference), Variant("estimates as they are", rule_alone(rule, {}))]
    found.append(Variant("true run times", rule_alone(rule, {}), informed=True))
    for exponent in AGEINGS:
        aged = rule_alone(rule, {**knowing, AGEING: np.array([exponent], dtype=np.float32)})
        found.append(Variant(f"ageing {exponent:g}", aged))
    found += [
        Variant(f"{name} {by:+g}", _nudged(reference, column, by))
        for column, name in enumerate(STATE_COLUMNS)
        for by in NUDGES
    ]
    return tuple(found)


def _nudged(actor: Actor, column: int, by: float) -> Actor:
    """With `by` times one column added to the score (a tanh that is straight there)."""
    kernel = np.zeros((actor.architecture.inputs, 1), dtype=np.float32)
    kernel[column] = by
    architecture = replace(actor.architecture, bound=1.0)
    return replace(actor, architecture=architecture, weights={**actor.weights, "layer0.kernel": kernel})


def measure_variants(task: VariantsTask) -> Floats:
    """(V, 3) `METRICS` of each variant; NaN where no job ran."""
    case = task.case
    limit = case.estimates.time_limit
    truth = Estimates(limit, known_run_times(case.jobs.run_time, limit))
    episodes = {False: episode(case), True: episode(replace(case, estimates=truth))}
    out = np.empty((len(task.variants), len(METRICS)))
    for row, variant in enumerate(task.variants):
        network = Network.from_actor(variant.actor)
        found = episodes[variant.informed].run(network, temperature=0.0, heads=0, seed=0, record=False)
        metrics = case.metrics(found.start, found.end).as_dict()
        out[row] = [metrics[metric] for metric in METRICS]
    return out


def headroom(
    site: Site,
    *,
    rule: str,
    estimates: str,
    window: int,
    windows: int,
    seed: int,
    pool: WorkerPool,
    progress: Progress = silent,
) -> Headroom:
    """Measure the variants on windows of the training part.

    Args:
        site: trace and cluster.
        rule: one of `rltuned.policy.actor.CORRECTED`.
        estimates: what is known of run times, as `rltuned evaluate --estimates`.
        window: jobs of each.
        windows: how many; as many others, drawn with another seed, give the coefficients.
        seed: of windows, estimates and intervals.
        pool: does the simulations.
        progress: called after each window.

    Raises:
        EvaluationError: windows longer than the part, or more than it has beginnings.
    """
    made = estimate(site.jobs, estimates, seed)
    measured_on, fitted = (
        list(cases(site.jobs, made, site.shape, draw(len(site.jobs), window, windows, at, Split.TRAIN)))
        for at in (seed, seed + 1)
    )
    coefficients = run_time_coefficients(fitted)
    tried = variants(rule, coefficients)
    values = []
    for done, found in enumerate(pool.map(measure_variants, [VariantsTask(case, tried) for case in measured_on]), 1):
        values.append(found)
        progress("windows", done, len(measured_on))
    measured = np.stack(values)  # (W, V, 3)
    drawn = counts(len(measured_on), seed)
    ratios = [_beside_the_first(measured[:, :, column].T, drawn) for column in range(len(METRICS))]
    return Headroom(
        len(measured_on),
        (float(coefficients[0]), float(coefficients[1]), float(coefficients[2])),
        tuple(
            VariantResult(variant.name, {metric: ratios[column][row] for column, metric in enumerate(METRICS)})
            for row, variant in enumerate(tried)
        ),
    )


def _beside_the_first(values: Floats, drawn: Floats) -> Sequence[Comparison]:
    """Each row of (V, W) over the first one."""
    return [compare(values[[row, 0]], drawn)[0][1] for row in range(len(values))]
