"""From the options of `rltuned train` to a training, and its result for people."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rltuned.core.config import DEFAULT_MODEL, SlurmSection
from rltuned.core.errors import ConfigError
from rltuned.core.objective import DEFAULT, Objective
from rltuned.core.workers.progress import Progress
from rltuned.lab.evaluate import site as this_site
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings, WhoseJobs
from rltuned.lab.evaluate.policies import model_path
from rltuned.lab.train.curriculum import MIXED, CurriculumSettings, Site
from rltuned.lab.train.training import Trained
from rltuned.lab.train.training_settings import SHARES, STEPS_PER_MINUTE, TrainSettings
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
        spec = parse_estimates(estimates)
        if spec.names:
            raise ConfigError(f"estimates: {spec}: models are trained on predictions without names; use history")
        estimates = str(spec)
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


def sources(
    traces: Sequence[str], clusters: Sequence[str], from_sacct: float | None = None, skip_bad: bool | None = None
) -> list[WhoseJobs]:
    """The traces with their clusters; or this site's jobs of the last days, on its nodes then or on one cluster."""
    pairs = zip(traces, clusters, strict=True) if traces else [("", "".join(clusters))]
    return [WhoseJobs(trace, cluster, from_sacct, bool(skip_bad)) for trace, cluster in pairs]


def read_sites(
    asked: Sequence[WhoseJobs], slurm: SlurmSection, now: float, tell: Callable[[str], None], progress: Progress
) -> list[Site]:
    """The jobs, each with its cluster; as `site.of_settings`."""
    settings = [EvaluationSettings(**vars(one)) for one in asked]
    return [Site(*this_site.of_settings(one, slurm, now, tell, progress)[1:]) for one in settings]


def line(of: Sequence[WhoseJobs], asked: TrainSettings) -> str:
    """The command line that gives the same model again; outputs and processes are left out."""
    days = of[0].from_sacct
    told: list[tuple[str, object]] = [("--from-sacct", None if days is None else f"{days:g}")]
    for one in of:
        told += [("--trace", one.trace or None), ("--cluster", one.cluster or None)]
    told += [
        ("--name", asked.name),
        ("--objective", None if asked.objective == DEFAULT else asked.objective),
        ("--estimates", asked.estimates),
        ("--from", asked.begin or NONE),
        ("--seed", asked.seed),
        ("--steps", ",".join(map(str, asked.steps))),
    ]
    words = [word for name, value in told if value is not None for word in (name, str(value))]
    return shlex.join(["rltuned", "train", *words, *(["--skip-bad"] if of[0].skip_bad else [])])


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
