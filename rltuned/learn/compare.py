"""Two models side by side: what their manifests say, how alike they rank, and which of them waits less on a trace."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from rltuned.evaluate.executors import Executor
from rltuned.evaluate.metrics import COMPARED
from rltuned.evaluate.report import comparisons
from rltuned.evaluate.run import evaluate, prepare
from rltuned.evaluate.settings import EvaluationSettings
from rltuned.learn.imitate import MEASURED_JOBS, kendall
from rltuned.learn.queues import UNSEEN, QueueSettings, generate
from rltuned.observe import observe
from rltuned.policy import files
from rltuned.policy.base import Policy
from rltuned.policy.files import ModelInfo
from rltuned.workers.progress import Progress, silent

LEARNED: Final = "rl"
"""The policy of the evaluator that a model is."""


@dataclass(frozen=True)
class Likeness:
    """How alike two policies rank generated queues."""

    tau: float
    """Mean Kendall τ of their orders; NaN where there was nothing to order."""
    tau_low: float
    """τ that 95 % of the states exceed."""
    same_first: float
    """Share of the states in which both put the same job first."""
    states: int


def side_by_side(
    models: tuple[str, str],
    states: int,
    seed: int,
    settings: EvaluationSettings | None,
    executor: Executor,
    revision: str,
    progress: Progress = silent,
) -> dict[str, Any]:
    """What `rltuned model compare` prints: `differences`, `likeness`, and `paired` where there is a trace.

    Args:
        models: name or manifest of each, as `rltuned evaluate --model` takes it.
        states: generated queues to rank.
        seed: of these queues.
        settings: of the evaluation on a trace; None: there is none.
        executor: where the simulations run.
        revision: of the code.
        progress: called after each step.

    Raises:
        ModelError: a model was refused.
        RltunedError: as `paired`.
    """
    infos = [files.info(each) for each in models]
    one, other = (files.load(each) for each in models)
    names = [info.name for info in infos]
    if names[0] == names[1]:
        names = [f"{name} ({at})" for at, name in enumerate(names, 1)]
    found: dict[str, Any] = {
        "models": names,
        "differences": differences(*infos),
        "likeness": asdict(likeness(one, other, states, seed, progress)),
    }
    if settings is not None:
        found["paired"] = paired(models, names, settings, executor, revision, progress)
    return found


def differences(a: ModelInfo, b: ModelInfo) -> dict[str, tuple[Any, Any]]:
    """What the manifests say differently: dotted name → value of each, None where it has none. Paths do not count."""
    flat_a, flat_b = (dict(_flat(replace(info, path=a.path))) for info in (a, b))
    names = [*flat_a, *(name for name in flat_b if name not in flat_a)]
    return {name: (flat_a.get(name), flat_b.get(name)) for name in names if flat_a.get(name) != flat_b.get(name)}


def _flat(info: ModelInfo) -> list[tuple[str, Any]]:
    def walk(prefix: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, Mapping):
            return [pair for key, inner in value.items() for pair in walk(f"{prefix}.{key}", inner)]
        return [(prefix, list(value) if isinstance(value, tuple) else value)]

    return [pair for key, value in asdict(info).items() for pair in walk(key, value)]


def likeness(a: Policy, b: Policy, states: int, seed: int, progress: Progress = silent) -> Likeness:
    """Rank `states` generated queues with both, half of them from each parametrisation of `rltuned.learn.queues`.

    Queues of fewer than `MEASURED_JOBS` jobs do not count.
    """
    rng = np.random.default_rng(seed)
    taus, first = [], []
    for done in range(1, states + 1):
        snapshot, estimates = generate(rng, QueueSettings() if done % 2 else UNSEEN)
        seen = observe(snapshot, snapshot.jobs.pending, estimates)
        progress("ranking", done, states)
        if len(seen) < MEASURED_JOBS:
            continue
        one, other = a.score(seen), b.score(seen)
        tau = kendall(one, other)
        if tau is not None:
            taus.append(tau)
            first.append(int(one.argmax()) == int(other.argmax()))
    if not taus:
        return Likeness(np.nan, np.nan, np.nan, 0)
    return Likeness(float(np.mean(taus)), float(np.quantile(taus, 0.05)), float(np.mean(first)), len(taus))


def paired(
    models: Sequence[str],
    names: Sequence[str],
    settings: EvaluationSettings,
    executor: Executor,
    revision: str,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Two models on the same windows of a trace: means of each, and the paired interval of the first over the second.

    Args:
        models: name or manifest of each, as `rltuned evaluate --model` takes it.
        names: what to call them, two different ones.
        settings: of the evaluation; its model and policies do not matter.
        executor: where the simulations run.
        revision: of the code, for `meta`.
        progress: called after each simulation.

    Raises:
        Whatever `rltuned.evaluate.run.prepare` does.
    """
    ready = [prepare(replace(settings, model=model, policies=(LEARNED,)), revision, progress) for model in models]
    reports = [evaluate(evaluation, executor, progress=progress) for evaluation in ready]
    windows = [
        {"start": pair[0]["start"], "policies": {n: w["policies"][LEARNED] for n, w in zip(names, pair, strict=True)}}
        for pair in zip(*(report["windows"] for report in reports), strict=True)
    ]
    first, second = names
    return {
        "meta": {
            "commands": [report["meta"]["command"] for report in reports],
            "intervals": reports[0]["meta"]["intervals"],
            "windows": len(windows),
            "jobs": reports[0]["windows"][0]["jobs"],
        },
        "models": {
            name: {metric: report["policies"][LEARNED][metric] for metric in COMPARED}
            for name, report in zip(names, reports, strict=True)
        },
        "comparison": {f"{first}/{second}": comparisons(windows, names, settings.seed)[f"{first}/{second}"]},
    }
