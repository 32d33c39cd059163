"""`rltuned model`: look at model files, check them, and choose among the versions of the model store."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rltuned import revision
from rltuned.commands.common import STORE_OPTION, config_option, console, emit, json_option, store_root, usage
from rltuned.config import DEFAULT_MODEL
from rltuned.errors import RltunedError


@click.group()
def model() -> None:
    """Look at model files, check them, and choose among the versions of the model store."""


@model.command("info")
@click.argument("name", metavar="NAME|PATH", default=DEFAULT_MODEL)
@json_option
def model_info(name: str, *, as_json: bool) -> None:
    """What a model is, what it was trained on, how it measured, and its card. NAME: a shipped model, or a manifest's
    path.
    """
    from rltuned import show
    from rltuned.policy import files

    info = files.info(_model(name))
    card = info.path.with_suffix(".md")
    try:
        text: str | None = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = None  # a model need not have one
    if as_json:
        emit({**asdict(info), "card": text})
    else:
        show.model(console(), info, text)


@model.command("verify")
@click.argument("name", metavar="NAME|PATH", default=DEFAULT_MODEL)
@json_option
def model_verify(name: str, *, as_json: bool) -> None:
    """Check a model file as the daemon does before it uses it: format, features, weights, golden vector.

    Exit code 4: refused; the message says which file and why.
    """
    import numpy as np

    from rltuned.policy import files

    result = files.verify(_model(name))
    if as_json:
        emit({**asdict(result), "numpy": np.__version__})
        return
    for check in result.checks:
        click.echo(f"ok  {check.name}: {check.detail}")
    click.echo(f"ok  numpy: the golden scores were computed with NumPy {np.__version__}")


@model.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--states", default=100, show_default=True, type=click.IntRange(min=1), help="Generated queues to rank.")
@click.option("--trace", help="Jobs to run both models on, as `rltuned evaluate` takes them; needs --cluster.")
@click.option("--cluster", help="For example 20x8:p100, or FILE.json.")
@click.option("--window", default=256, show_default=True, type=click.IntRange(min=1), help="Jobs of a window.")
@click.option("--windows", default=30, show_default=True, type=click.IntRange(min=1), help="How many windows.")
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0), help="Of queues, windows, estimates.")
@click.option("--estimates", default="true", show_default=True, help="true, noisy:SIGMA, limit or history.")
@click.option("--split", type=click.Choice(["all", "train", "validation", "test"]), default="all", show_default=True)
@click.option("--start", type=click.Choice(["idle", "warm"]), default="idle", show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Processes. [default: one per core]")
@json_option
def model_compare(first: str, second: str, *, states: int, workers: int | None, as_json: bool, **options: Any) -> None:
    """Two models: what their manifests say differently, how alike they rank, and on a trace which of them waits less.

    \b
    Examples:
      rltuned model compare base general
      rltuned model compare base mine.json --trace jobs.csv.gz --cluster 16x8:a100 --estimates noisy:1.5 --split test
    """
    from rltuned import show
    from rltuned.evaluate import executors
    from rltuned.evaluate.settings import from_options
    from rltuned.learn import compare
    from rltuned.workers.progress import progress_bar

    if (options["trace"] is None) != (options["cluster"] is None):
        raise click.UsageError("--trace and --cluster go together")
    with usage():
        settings = None if options["trace"] is None else from_options(options)
    executor = executors.chosen("local", workers, None, {})
    with progress_bar() as progress:
        told = compare.side_by_side(
            (_model(first), _model(second)), states, options["seed"], settings, executor, revision(), progress
        )
    if as_json:
        emit(told)
    else:
        show.model_comparison(console(), told)


@model.command("card")
@click.argument("name", metavar="NAME|PATH")
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="R.json",
    help="What `rltuned evaluate --json R.json` wrote about this model. Repeatable.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Where to; - for standard output. [default: NAME.md beside the manifest]",
)
def model_card(name: str, reports: tuple[Path, ...], out: Path | None) -> None:
    """Write a model's card: data, protocol, results with intervals, and where it loses. The same files, the same
    card.
    """
    from rltuned.evaluate.card import card, read_report
    from rltuned.policy import files

    info = files.info(_model(name))
    text = card(info, [read_report(path) for path in reports])
    path = out if out is not None else info.path.with_suffix(".md")
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RltunedError(f"{path}: cannot be written: {error.strerror}") from error
    click.echo(f"{path}: {len(reports)} evaluations")


@model.command("portrait")
@click.argument("name", metavar="NAME|PATH|RULE", default=DEFAULT_MODEL)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory for the PNGs.")
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0), help="Of the queue and the cluster.")
def model_portrait(name: str, out: Path, seed: int) -> None:
    """Draw what a model learned: its score against run time, time limit, GPUs, age and the state of the cluster.

    docs/policy.md tells how to read the pictures. A plain rule can be drawn as well, to compare.
    """
    from rltuned.evaluate.portrait import draw
    from rltuned.policy import files
    from rltuned.policy.heuristics import RULES

    for path in draw(RULES[name] if name in RULES else files.load(_model(name)), out, seed):
        click.echo(path)


@model.command("list")
@STORE_OPTION
@config_option
@json_option
def model_list(root: Path | None, config_path: Path | None, *, as_json: bool) -> None:
    """The versions of the model store, which of them is in force, and why. docs/learning.md explains the store."""
    from rltuned.daemon.verdict import understood
    from rltuned.policy.store import ModelStore

    store = ModelStore(store_root(root, config_path))
    current, uses = store.current(), store.uses()
    told: list[dict[str, Any]] = []
    for version in store.versions():
        last = next((use for use in reversed(uses) if use.version == version.number), None)
        told.append(
            {
                "version": version.number,
                "in_force": current is not None and version.number == current.number,
                "made_at": version.made_at,
                "origin": version.origin,
                "manifest_sha256": version.manifest_sha256,
                "verdict": understood(version.verdict),
                "in_force_since": None if last is None else last.since,
                "why": "" if last is None else last.why,
            }
        )
    if as_json:
        emit(told)
        return
    for one in told:
        mark = "*" if one["in_force"] else " "
        why = f"; {one['why']}" if one["why"] else ""
        made = datetime.fromtimestamp(one["made_at"], UTC).strftime("%Y-%m-%d %H:%M")
        click.echo(f"{mark} {one['version']}  {made} UTC  {one['origin']}; verdict: {one['verdict']}{why}")
    if not told:
        click.echo(f"{store.root}: no version yet; `rltuned learn` makes one, `rltuned model use NAME` puts one there")


@model.command("use")
@click.argument("name", metavar="VERSION|NAME|PATH")
@STORE_OPTION
@config_option
def model_use(name: str, root: Path | None, config_path: Path | None) -> None:
    """Bring a version of the model store into force. A model by name or path is put into the store first.

    The daemon takes it with its next cycle. With policy.name = "auto" the version's own verdict counts: without one
    Slurm's own order stays until `rltuned learn` has judged it.
    """
    from rltuned.daemon.clock import SystemClock
    from rltuned.policy.store import ModelStore

    store, now = ModelStore(store_root(root, config_path)), SystemClock().time()
    with store.locked():
        version = store.version(int(name)) if name.isdigit() else store.add(_model(name), now, f"given: {name}")
        store.use(version, now, "chosen by an admin")
    click.echo(f"version {version.number} is in force; the daemon takes it with its next cycle")


@model.command("rollback")
@STORE_OPTION
@config_option
def model_rollback(root: Path | None, config_path: Path | None) -> None:
    """Bring the version of the model store back that was in force before. The daemon takes it with its next cycle."""
    from rltuned.daemon.clock import SystemClock
    from rltuned.policy.store import ModelStore

    store = ModelStore(store_root(root, config_path))
    with store.locked():
        version = store.rollback(SystemClock().time(), "brought back by an admin")
    click.echo(f"version {version.number} is in force again; the daemon takes it with its next cycle")


def _model(name: str) -> str:
    """As `rltuned.policy.files` takes it: a name, or an absolute path."""
    return str(Path(name).absolute()) if name.endswith(".json") else name
