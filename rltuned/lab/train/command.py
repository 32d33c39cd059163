"""From the options of `rltuned train` to a training, and its result for people."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rltuned.core.config import DEFAULT_MODEL, SlurmSection
from rltuned.core.errors import ConfigError
from rltuned.core.objective import DEFAULT, Objective
from rltuned.core.workers.progress import Progress
from rltuned.lab.evaluate import site as this_site
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.policies import model_path
from rltuned.lab.train.curriculum import MIXED, CurriculumSettings, Site
from rltuned.lab.train.training import Trained
from rltuned.lab.train.training_settings import SHARES, STEPS_PER_MINUTE, TrainSettings
from rltuned.simulate.shape import read_shape
from rltuned.simulate.workload.readers import read
from rltuned.simulate.workload.simulated_estimates import parse_estimates

NONE: Final = "none"  # of `--from`: no model
BUDGET: Final = 30.0  # minutes on 2 cores
_SHOWN: Final = {
    "objective": "J",
    "wait_mean": "mean wait",
    "bsld_mean": "slowdown",
    "wait_p99": "p99 wait",
    "idle": "idle GPUs",
}


def settings(
    *,
    name: str,
    budget: float | None = None,
    steps: str | None = None,
    objective: Objective = DEFAULT,
    estimates: str = MIXED,
    seed: int = 7,
    begin: str = DEFAULT_MODEL,
) -> TrainSettings:
    """Of the command line's options. ConfigError: estimates that do not exist; steps that are not two numbers."""
    if estimates != MIXED:
        estimates = str(parse_estimates(estimates))
    return TrainSettings(
        name=name,
        seed=seed,
        steps=_steps(steps, budget),
        objective=objective,
        begin="" if begin == NONE else model_path(begin),
        estimates=estimates,
        curriculum=CurriculumSettings(estimates=estimates),
    )


def _steps(text: str | None, budget: float | None) -> tuple[int, int]:
    """Of the two parts of a training."""
    if text is None:
        every = (budget or BUDGET) * STEPS_PER_MINUTE
        first, second = (max(1, round(share * every)) for share in SHARES)
        return first, second
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise ConfigError(f"--steps: '{text}' is not EVOLUTION,PPO, two numbers of steps, as 120,15")
    first, second = map(int, parts)
    return first, second


def read_sites(traces: Sequence[str], clusters: Sequence[str], *, skip_bad: bool) -> list[Site]:
    """The traces with their clusters."""
    shapes = [read_shape(cluster) for cluster in clusters]
    return [Site(read(trace, skip_bad=skip_bad), shape) for trace, shape in zip(traces, shapes, strict=True)]


def own_site(
    slurm: SlurmSection,
    days: float,
    clusters: Sequence[str],
    now: float,
    tell: Callable[[str], None],
    progress: Progress,
) -> Site:
    """This site's jobs of the last days, and its nodes then, or the one cluster that is given instead."""
    asked = EvaluationSettings(from_sacct=days, cluster=clusters[0] if clusters else "")
    _, jobs, shape = this_site.of_settings(asked, slurm, now, tell, progress)
    return Site(jobs, shape)


def line(
    traces: Sequence[str],
    clusters: Sequence[str],
    from_sacct: float | None,
    asked: TrainSettings,
    *,
    skip_bad: bool = False,
) -> str:
    """The command line that gives the same model again; outputs and processes are left out."""
    told: list[tuple[str, object]] = [("--from-sacct", None if from_sacct is None else f"{from_sacct:g}")]
    for number, cluster in enumerate(clusters):
        told += [("--trace", traces[number] if traces else None), ("--cluster", cluster)]
    told += [
        ("--name", asked.name),
        ("--objective", None if asked.objective == DEFAULT else asked.objective),
        ("--estimates", asked.estimates),
        ("--from", asked.begin or NONE),
        ("--seed", asked.seed),
        ("--steps", ",".join(map(str, asked.steps))),
    ]
    words = [word for name, value in told if value is not None for word in (name, str(value))]
    return shlex.join(["rltuned", "train", *words, *(["--skip-bad"] if skip_bad else [])])


def lines(result: Trained) -> Iterator[str]:
    """The result of a training, in sentences."""
    kept = "what training began with, step 0" if result.step == 0 else f"step {result.step}"
    yield f"{result.path}: {kept} of {result.steps} steps, the best on the validation windows"
    for group, ratios in result.validation.groups.items():
        shown = ", ".join(f"{label} {ratios[name]:.3f}" for name, label in _SHOWN.items())
        yield f"  {group}: {shown} of smallest area first's"
    for reason, count in result.skipped.items():
        if count:
            yield f"  windows left out: {count} ({reason})"
