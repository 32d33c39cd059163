"""A network that learns from rollouts what no score of a plain rule says, and how much of their gain it keeps.

    PYTHONPATH=. python tests/measures/student.py orders TRACES
    PYTHONPATH=. python tests/measures/student.py fit TRACES DATA --unseen venus --out RUN

`orders`: what the search gains with 5 to 96 orders at single moments of validation windows, in scenarios that it has
not seen. `fit`: an actor that corrects SAF on expected run times learns from the decision points of `studies.teacher`
in DATA: of two jobs, the one goes first whose move before the other made an order cheaper, each pair weighed with what
it gained or cost. Then it is measured without rollouts on validation windows beside the rule that it corrects, with all
of its correction and with parts of it. docs/decisions/0098 (E) has the results.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from rltuned import revision
from rltuned.cluster.tables import Floats, Ints, Singles
from rltuned.decide.ranks import ranks_of
from rltuned.evaluate.case import Case, cases
from rltuned.evaluate.settings import EvaluationSettings, Start
from rltuned.evaluate.windows import Split, draw
from rltuned.learn.pairwise import PairwiseSettings, fit
from rltuned.learn.sampling import MeasureTask, measure_policies
from rltuned.policy import files
from rltuned.policy.actor import RUN_TIME, Actor, Architecture, initial_weights
from rltuned.policy.manifest import TrainingPart
from rltuned.simulate.rankers import compile_kernel
from rltuned.simulate.search import OrderSearch, compile_rollouts
from rltuned.workers.progress import silent
from rltuned.workload.estimates import estimate
from rltuned.workload.readers import read
from rltuned.workload.shapes import read_shape
from studies.teacher import SITES, WINDOW, requests_of

SEED: Final = 5
BUDGETS: Final = (5, 12, 24, 48, 96)
SCENARIOS: Final = 24
"""That the search has not seen."""
LEAST: Final = 0.001
"""A move that changes the cost by less says nothing."""
MOST_GAIN, MOST_COST = 0.1, 0.05
"""More counts as this: one window must not decide."""
RULES: Final = 6
"""The policy's own order and those of the plain rules come first in a decision point; behind them are the moves."""
GOLDEN: Final = 16
"""Rows of the golden vector."""
SHARPNESS: Final = 20.0
PARTS: Final = (0.25, 0.5, 1.0)
METRICS: Final = ("wait_mean", "bsld_mean", "wait_p99")
RESAMPLES: Final = 4000


def of_site(traces: Path, site: tuple[str, str, str, str], count: int) -> list[Case]:
    """Validation windows."""
    _, file, cluster, how = site
    jobs, shape = read(str(traces / file)), read_shape(cluster)
    windows, history = draw(len(jobs), WINDOW, count, SEED, Split.VALIDATION), how == "history"
    return list(
        cases(jobs, estimate(jobs, how, SEED), shape, windows, WINDOW if history else 0, history=history),
    )


def orders(traces: Path, count: int) -> None:
    """See above."""
    compile_kernel()
    compile_rollouts()
    actor, search = files.load("general"), OrderSearch()
    for site in SITES:
        start = Start.WARM if site[3] == "history" else Start.IDLE
        settings = EvaluationSettings(trace=site[1], cluster=site[2], window=WINDOW, estimates=site[3], start=start)
        found: dict[int, list[tuple[float, float, int]]] = {budget: [] for budget in BUDGETS}
        for case in of_site(traces, site, count):
            for request, _ in requests_of(case, settings, actor):
                rollouts = OrderSearch(samples=2 * SCENARIOS).rollouts(request)
                if rollouts is None:
                    continue
                last = min(SCENARIOS, rollouts.scenarios)
                own = rollouts.run(rollouts.own, 0, last)
                place = np.argsort(rollouts.queue)
                for budget, rows in found.items():
                    result = replace(search, orders=budget)(request)
                    made, ratio, cost = 0 if result is None else result.rollouts, 1.0, 1.0
                    if result is not None and result.order is not None:
                        order = place[np.searchsorted(rollouts.queue[place], result.order)]
                        chosen = rollouts.run(ranks_of(order).astype(np.float64), 0, last)
                        ratio = chosen.wait.sum() / max(own.wait.sum(), 1.0)
                        cost = chosen.slowdown.sum() / own.slowdown.sum()
                    rows.append((ratio, cost, made))
        for budget, rows in found.items():
            wait, slowdown, made = np.mean(rows, axis=0)
            words = (
                f"{site[0]} {site[3]}: {budget} orders, {made:.0f} rollouts: wait {wait:.3f}, slowdown {slowdown:.3f}"
            )
            click.echo(words)


def evidence(point: Mapping[str, Any]) -> Singles:
    """(n, n) how much cheaper orders were in which the one job (row) had been moved before the other (column), or how
    much dearer in which it had been moved behind it; a share of the cost of the policy's own order.
    """
    cost = point["costs"].sum(axis=2)
    ratio = cost / np.where(cost[0] > 0, cost[0], 1.0)
    search = OrderSearch()
    weights = np.array([1.0 - search.slowdown, search.slowdown, search.utilisation])
    gain = np.clip(1.0 - ratio @ weights / weights.sum(), -MOST_COST, MOST_GAIN)
    found = np.zeros((len(point["run"]),) * 2, dtype=np.float32)
    for order, gained in zip(point["orders"][RULES:], gain[RULES:], strict=True):
        moved = np.flatnonzero(order != np.arange(len(order)))
        if not len(moved) or abs(gained) < LEAST:
            continue
        first, last = int(moved[0]), int(moved[-1])
        passed = last - first
        if order[first] == last:  # the last of them went first
            found[last, first:last] += gained / passed
        else:
            found[first, first + 1 : last + 1] -= gained / passed
    return found - found.T


def points(data: Path, split: Split) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of the site, and each decision point."""
    for file in sorted(data.glob(f"*-{split.value}-*.npz")):
        with np.load(file) as kept:
            of: dict[str, dict[str, Any]] = {}
            for key in kept.files:
                number, _, name = key.partition(".")
                of.setdefault(number, {})[name] = kept[key]
        yield from ((file.name.partition("-")[0], point) for point in of.values())


def student(data: Path, out: Path, unseen: str, steps: int, seed: int, *, context: bool) -> tuple[Actor, float]:
    """An actor that has learned, and its loss. It is kept as a model.

    Args:
        data: of `studies.teacher`.
        out: where the model goes.
        unseen: the trace that is left out; "": none.
        steps: of Adam.
        seed: of weights and pairs.
        context: whether it sees the mean of the queue.
    """
    # The trace with users is cut out of that of Venus.
    left_out = {unseen, "users"} if unseen == "venus" else {unseen}
    seen = [point for site, point in points(data, Split.TRAIN) if site not in left_out]
    state = np.concatenate([point["state"] for point in seen])
    count = np.array([len(point["state"]) for point in seen])
    base = np.concatenate([point["score"] for point in seen]).astype(np.float32)
    known = [evidence(point) for point in seen]
    queue = np.repeat(np.arange(len(seen)), count)
    place = np.concatenate([np.arange(n) for n in count])

    def pairs(rows: Ints) -> tuple[Singles, Singles]:
        of, one, other = queue[rows[:, 0]], place[rows[:, 0]], place[rows[:, 1]]
        told = np.array([known[q][i, j] for q, i, j in zip(of, one, other, strict=True)], dtype=np.float32)
        return np.sign(told), np.abs(told)

    rng = np.random.default_rng(seed)
    architecture = Architecture(residual="saf", context=context)
    scale = np.maximum(state.std(axis=0), np.float32(0.05))
    weights = initial_weights(architecture, state.mean(axis=0), scale, rng)
    weights[f"layer{architecture.layers - 1}.kernel"] *= np.float32(0.0)
    name = f"{unseen or 'none'}-unseen-{seed}-{'context' if context else 'row'}"
    begun = Actor(name, architecture, weights)
    how = PairwiseSettings(steps, 2048, 3e-3, SHARPNESS)
    fitted, loss = fit(begun, (state, base, count), pairs, how, rng, silent, "student")
    expected = {RUN_TIME: files.load("general").weights[RUN_TIME]}
    made = replace(fitted, weights={**fitted.weights, **expected})
    told = f"{len(seen)} decision points (studies.teacher) without {unseen or 'none'}; target: what moves gain"
    training = TrainingPart(
        method="imitation", data=told, traces={}, seed=seed, revision=revision(), settings=asdict(how)
    )
    files.save(made, out, training, {"loss": loss}, state[:GOLDEN], base[:GOLDEN].astype(np.float64))
    return made, loss


def measured(actor: Actor, windows: list[Case]) -> Floats:
    """(windows, 3) `METRICS` without rollouts."""
    found = [measure_policies(MeasureTask(case, actor=actor))["actor"] for case in windows]
    return np.array([[one[name] for name in METRICS] for one in found])


def compared(own: Floats, rule: Floats) -> tuple[list[float], tuple[float, float]]:
    """Ratio of the means of each metric, and the 95 % bootstrap interval of the first."""
    drawn = np.random.default_rng(SEED).integers(len(own), size=(RESAMPLES, len(own)))
    ratio = own[drawn, 0].mean(axis=1) / rule[drawn, 0].mean(axis=1)
    low, high = np.quantile(ratio, (0.025, 0.975)).tolist()
    return (own.mean(axis=0) / rule.mean(axis=0)).tolist(), (low, high)


def learn(traces: Path, data: Path, unseen: str, steps: int, seed: int, count: int, out: Path) -> None:
    """See above; the results are kept in `out`, a line each, beside the models."""
    out.mkdir(parents=True, exist_ok=True)
    windows = {site: of_site(traces, site, count) for site in SITES if site[3] != "history"}
    rule = files.load("general")
    plain = {site: measured(rule, of) for site, of in windows.items()}
    for context in (False, True):
        actor, loss = student(data, out, unseen, steps, seed, context=context)
        for part in PARTS:
            kept = replace(actor, architecture=replace(actor.architecture, bound=part * actor.architecture.bound))
            for site, of in windows.items():
                (wait, slowdown, p99), interval = compared(measured(kept, of), plain[site])
                line = {"unseen": unseen, "seed": seed, "context": context, "part": part, "site": [site[0], site[3]]}
                line |= {"wait": wait, "interval": interval, "slowdown": slowdown, "p99": p99, "loss": loss}
                with (out / "measured.jsonl").open("a") as stream:
                    stream.write(json.dumps(line) + "\n")
                click.echo(json.dumps(line))


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    gains = commands.add_parser("orders")
    gains.add_argument("traces", type=Path)
    gains.add_argument("--windows", type=int, default=12, help="of each site")
    fits = commands.add_parser("fit")
    fits.add_argument("traces", type=Path)
    fits.add_argument("data", type=Path)
    fits.add_argument("--unseen", default="", choices=("", *dict.fromkeys(site[0] for site in SITES)))
    fits.add_argument("--steps", type=int, default=800)
    fits.add_argument("--seed", type=int, default=0)
    fits.add_argument("--windows", type=int, default=40, help="of each site")
    fits.add_argument("--out", type=Path, required=True)
    parsed = parser.parse_args()
    if parsed.command == "orders":
        orders(parsed.traces, parsed.windows)
    else:
        learn(parsed.traces, parsed.data, parsed.unseen, parsed.steps, parsed.seed, parsed.windows, parsed.out)


if __name__ == "__main__":
    main()
