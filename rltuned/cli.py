"""The command line. Thin: each command gathers its inputs, calls one function below, and prints the answer.

Imports that cost time or memory happen inside the commands: ``restore`` must work where NumPy is broken, ``--help`` must
be instant.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rltuned import __version__
from rltuned.config import (
    DEFAULT_MODEL,
    DEFAULT_PATH,
    Config,
    Effective,
    PlacementApply,
    Stage,
    resolve,
    sample,
    toml_value,
)
from rltuned.errors import ConfigError, JournalError, RltunedError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FINDINGS = 10
"""`doctor` found an error, `restore` left something (docs/exit-codes.md)."""

EXIT_UNPROVEN = 14
"""`evaluate --gate` found nothing that is certainly better than Slurm's own order."""

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help=f"Configuration file. [default: {DEFAULT_PATH} if it exists]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value for machines.")


def load(path: Path | None, flags: Mapping[str, tuple[Any, str]] | None = None) -> Effective:
    """The effective configuration of file, environment and flags.

    Raises:
        ConfigError: the named file does not exist or anything in it is wrong.
    """
    chosen = path if path is not None else DEFAULT_PATH
    try:
        text: str | None = chosen.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(
                f"{path}: no such file; `rltuned show-config --sample` prints one to start from"
            ) from None
        text = None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen}: cannot be read: {error}") from error
    return resolve(text, str(chosen), os.environ, flags or {})


def console(*, stderr: bool = False) -> "Console":
    """Where tables go."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def emit(value: Any) -> None:
    """Print one JSON value."""
    click.echo(json.dumps(value, indent=2, sort_keys=True, default=str))


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="rltuned")
@config_option
@click.option("--dry-run", is_flag=True, help="Shadow mode: plan, record and measure, but write nothing to Slurm.")
@click.option("--once", is_flag=True, help="One cycle, then end.")
@click.pass_context
def cli(context: click.Context, config_path: Path | None, *, dry_run: bool, once: bool) -> None:
    """rltuned makes a Slurm GPU cluster finish work sooner.

    A daemon on the slurmctld host that reorders pending jobs by a learned policy, within the priorities that they have,
    and can always be undone. Without a command it runs: `rltuned --dry-run` is the shadow mode.

    \b
    First steps:
      rltuned doctor             is this cluster ready, and what is missing?
      rltuned plan               what would one cycle change? (writes nothing)
      rltuned --dry-run          run as the daemon would, without writing
      rltuned explain JOBID      why is this job at this rank?
      rltuned restore            undo everything
    """
    if context.invoked_subcommand is None:
        context.invoke(run, config_path=config_path, dry_run=dry_run, once=once, stage=None)
    elif dry_run or once or config_path is not None:
        raise click.UsageError(
            f"give --config, --dry-run and --once after the command: rltuned {context.invoked_subcommand} …"
        )


@cli.command()
@config_option
@click.option("--dry-run", is_flag=True, help="Shadow mode whatever the configuration says; no writer is constructed.")
@click.option("--once", is_flag=True, help="One cycle, then end.")
@click.option("--stage", type=click.Choice([stage.value for stage in Stage]), help="Override cycle.stage.")
def run(config_path: Path | None, *, dry_run: bool, once: bool, stage: str | None) -> None:
    """Run the daemon (what systemd starts)."""
    from rltuned.daemon.service import serve

    flags: dict[str, tuple[Any, str]] = {}
    if stage is not None:
        flags["cycle.stage"] = (stage, "--stage")
    if dry_run:
        effective = load(config_path, flags)
        observing = effective.config.cycle.stage is Stage.OBSERVE
        flags["cycle.stage"] = (Stage.OBSERVE.value if observing else Stage.SHADOW.value, "--dry-run")
    serve(lambda: load(config_path, flags), dry_run=dry_run, once=once)


@cli.command()
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1, type=click.IntRange(min=1))
@config_option
@click.option(
    "--orphans",
    is_flag=True,
    help="Also clear site factors that the journal does not know. Only for sites where nobody else uses SiteFactor.",
)
@click.option(
    "--if-stale",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Do nothing unless the daemon's heartbeat is older (what the dead-man timer runs).",
)
@json_option
def restore(
    job_ids: tuple[int, ...], config_path: Path | None, *, orphans: bool, if_stale: float | None, as_json: bool
) -> None:
    """Undo everything that rltuned has put on the queue, and prove it by reading back.

    With JOBIDs only those jobs, which the daemon then leaves alone for good. Works without the daemon and without a
    model. Exit code 10: something could not be taken back; each such job is named with the reason and the remedy.
    """
    from rltuned.daemon.undo import undo

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\rrestoring {done}/{total}", nl=done == total, err=True)

    report = undo(load(config_path).config, job_ids=job_ids, orphans=orphans, if_stale=if_stale, progress=progress)
    if report is None:
        click.echo("null" if as_json else "The daemon is alive; nothing was done.")
        return
    if as_json:
        emit(report.to_json())
    else:
        click.echo(report.sentence())
        for left in report.left:
            click.echo(f"  job {left.job_id}: {left.field}={left.value} stays: {left.reason} → {left.remedy}")
    if report.journal_trouble:
        click.echo(f"The journal could not be brought up to date: {report.journal_trouble}", err=True)
    if not report.complete:
        raise click.exceptions.Exit(EXIT_FINDINGS)
    if report.journal_trouble and job_ids:
        raise JournalError(
            "the jobs are given back, but a daemon will not know that it has to leave them alone: make room for the journal, "
            "then run this again"
        )


@cli.command("check-config")
@click.argument("path", required=False, type=click.Path(dir_okay=False, path_type=Path))
def check_config(path: Path | None) -> None:
    """Validate a configuration file (and the environment) without starting anything."""
    effective = load(path)
    from rltuned.daemon.loop import load_policy
    from rltuned.daemon.rehearse import check as check_rehearsal
    from rltuned.daemon.verdict import Auto

    policy = load_policy(effective.config.policy)
    check_rehearsal(effective.config.rehearsal)
    click.echo(
        f"{path or DEFAULT_PATH}: ok, stage {effective.config.cycle.stage}, policy {effective.config.policy.name}"
    )
    if isinstance(policy, Auto) and policy.reading.trouble:
        click.echo(f"note: {policy.reading.trouble}; until there is one, Slurm's own order stays")


@cli.command("show-config")
@config_option
@click.option("--sample", "as_sample", is_flag=True, help="Print a file with every key, its meaning and its default.")
@json_option
def show_config(config_path: Path | None, *, as_sample: bool, as_json: bool) -> None:
    """Print the configuration in force and where each value comes from."""
    if as_sample:
        click.echo(sample(), nl=False)
        return
    effective = load(config_path)
    tree = effective.config.model_dump(mode="json")
    if as_json:
        emit({"config": tree, "sources": dict(effective.sources)})
        return
    for section, values in tree.items():
        click.echo(f"[{section}]")
        for key in values:
            shown = toml_value(getattr(getattr(effective.config, section), key))
            click.echo(f"{key} = {shown}  # {effective.sources.get(f'{section}.{key}', 'default')}")
        click.echo("")


@cli.command("metrics-user")
@click.argument("name")
@click.password_option(help="Asked for when it is not given; on the command line others can see it.")
def metrics_user(name: str, password: str) -> None:
    """Print a line for the file `metrics.users`: who may read the metrics, with a hash of the password."""
    import secrets

    from rltuned.daemon.endpoint import user_line

    try:
        click.echo(user_line(name, password, secrets.token_bytes(16)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@cli.group()
def model() -> None:
    """Look at model files and check them."""


@model.command("info")
@click.argument("name", metavar="NAME|PATH", default=DEFAULT_MODEL)
@json_option
def model_info(name: str, *, as_json: bool) -> None:
    """What a model is, what it was trained on, how it measured, and its card. NAME: a shipped model, or a manifest's path."""
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
@click.option("--window", default=256, show_default=True, help="Consecutive jobs of a window.")
@click.option("--windows", default=30, show_default=True, help="How many windows.")
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
    from rltuned.learn.progress import progress_bar
    from rltuned.policy import files

    if (options["trace"] is None) != (options["cluster"] is None):
        raise click.UsageError("--trace and --cluster go together")
    models = (_model(first), _model(second))
    infos = [files.info(each) for each in models]
    one, other = (files.load(each) for each in models)
    names = [info.name for info in infos]
    if names[0] == names[1]:
        names = [f"{name} ({at})" for at, name in enumerate(names, 1)]
    with progress_bar() as progress:
        told: dict[str, Any] = {
            "models": names,
            "differences": compare.differences(*infos),
            "likeness": asdict(compare.likeness(one, other, states, options["seed"], progress)),
        }
        if options["trace"] is not None:
            chosen = executors.chosen("local", workers, None, {})
            settings = from_options(options)
            told["paired"] = compare.paired(models, names, settings, chosen, _revision(), progress)
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
    """Write a model's card: data, protocol, results with intervals, and where it loses. The same files, the same card."""
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


def _model(name: str) -> str:
    """As `rltuned.policy.files` takes it: a name, or an absolute path."""
    return str(Path(name).absolute()) if name.endswith(".json") else name


@cli.group(invoke_without_command=True)
@click.option("--trace", "traces", multiple=True, help="Jobs to learn from; may be given again. See `rltuned traces`.")
@click.option(
    "--cluster", "clusters", multiple=True, help="Cluster of each trace, in their order: 16x8:a100, FILE.json."
)
@click.option("--from-sacct", type=click.FloatRange(min=0, min_open=True), metavar="DAYS", help="This site's own jobs.")
@config_option
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Run directory: model, curves, checkpoints."
)
@click.option("--name", default="site", show_default=True, help="Name of the model.")
@click.option(
    "--objective",
    type=click.Choice(["wait", "jct", "bsld", "utilization", "mix"]),
    default="mix",
    show_default=True,
    help="What to make small; mix: wait, slowdown and the tail of the wait.",
)
@click.option(
    "--estimates",
    default="mixed",
    show_default=True,
    metavar="true|noisy:SIGMA|limit|mixed",
    help="What is known of run times; mixed: drawn for each window, users' limits where the trace has them.",
)
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0), help="The same seed, the same model.")
@click.option(
    "--budget",
    "--minutes",
    "budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    help="On 2 cores. [default: 30]",
)
@click.option("--iterations", type=click.IntRange(min=0), help="Of PPO, instead of as many as the budget has room for.")
@click.option("--window", type=click.IntRange(min=2), help="Most jobs of a window. [default: 1024]")
@click.option("--processes", type=click.IntRange(min=1), help="That play windows. [default: cores]")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, to the same end.")
@click.option("--seeds", metavar="N,N…", help="A sweep: a training with each, below --out; goes on where it stopped.")
@click.option("--objectives", metavar="NAME,NAME…", help="A sweep over these, too.")
@click.option(
    "--executor",
    type=click.Choice(["local", "slurm"]),
    default="local",
    show_default=True,
    help="slurm: a sweep as an array job, one task for each training.",
)
@click.option("--slurm-partition", default="", help="Partition of the array job.")
@click.option(
    "--slurm-parallel", default=64, show_default=True, type=click.IntRange(min=1), help="Trainings at a time."
)
@click.option("--slurm-minutes", default=120, show_default=True, type=click.IntRange(min=1), help="Limit of each task.")
@click.option(
    "--slurm-option", multiple=True, metavar="NAME=VALUE", help="More for sbatch, e.g. account=lab. Repeatable."
)
@click.option(
    "--peer",
    type=click.Choice(["rlscheduler", "schedinspector"]),
    help="Train this learned peer instead, as its authors do, for a comparison (docs/peers.md).",
)
@click.option(
    "--rule",
    metavar="RULE",
    help="Base rule: its metric is the unit of rewards, and saf, sjf or qssf is corrected, beside another one the network stands alone. [default: saf; of --peer schedinspector: sjf]",
)
@click.option(
    "--columns",
    metavar="NAME,NAME…",
    help="The network sees only these columns of the state: what are the others worth? [default: all; docs/features.md]",
)
@click.option("--form", metavar="FORMAT", help="Format of the traces. [default: by their first lines]")
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be read and go on.")
@json_option
@click.pass_context
def train(
    context: click.Context,
    /,
    traces: tuple[str, ...],
    clusters: tuple[str, ...],
    from_sacct: float | None,
    config_path: Path | None,
    out: Path | None,
    name: str,
    budget: float | None,
    iterations: int | None,
    window: int | None,
    processes: int | None,
    seeds: str | None,
    objectives: str | None,
    executor: str,
    form: str | None,
    peer: str | None,
    rule: str | None,
    *,
    resume: bool,
    skip_bad: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a policy on jobs of the past (needs `pip install rltuned[train]`).

    A warm start from hindsight, then reinforcement learning (PPO) on the simulator. The first 70 % of each trace is learned
    from, the next 15 % decides which checkpoint is kept; the rest is for `rltuned evaluate --split test`. docs/training.md
    explains every file in --out.

    \b
    Examples:
      rltuned train --trace jobs.csv.gz --cluster 16x8:a100 --out run
      rltuned train --from-sacct 180 --out run          this site's own jobs and nodes
      rltuned train --trace a.csv --cluster 20x8 --trace b.swf --cluster 240x1 --objective wait --out run
      rltuned train --trace jobs.csv.gz --cluster 16x8:a100 --out run --resume      after a kill
      rltuned train --trace jobs.csv.gz --cluster 16x8:a100 --out sweep --seeds 1,2,3 --objectives wait,mix
      rltuned evaluate --trace jobs.csv.gz --cluster 16x8:a100 --split test --model run/site.json
    """
    if context.invoked_subcommand is not None:
        if traces or clusters or from_sacct or out:
            raise click.UsageError(f"options of a training go without '{context.invoked_subcommand}', or behind it")
        return
    _check_sites(traces, clusters, from_sacct)
    if out is None:
        raise click.UsageError("--out DIR: where the model, its curves and its checkpoints go")
    if peer is not None:
        if len(traces) != 1 or resume:
            raise click.UsageError("--peer takes one --trace with one --cluster, and no --resume")
        given = {key: value for key, value in options.items() if not _defaulted(context, key)}
        foreign = set(given) - {"objective", "estimates", "seed"}
        foreign |= {key for key in ("seeds", "objectives", "executor", "config_path") if not _defaulted(context, key)}
        if foreign:
            option = min(foreign).removesuffix("_path").replace("_", "-")
            raise click.UsageError(f"--{option} does not go with --peer")
        given |= {} if _defaulted(context, "name") else {"name": name}
        asked = {"minutes": budget, "epochs": iterations, "jobs": window, "processes": processes, "rule": rule}
        given |= {key: value for key, value in asked.items() if value is not None}
        _train_peer(peer, (traces[0], clusters[0], out), given, {"form": form, "skip_bad": skip_bad}, as_json=as_json)
        return
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("tensorflow", "numba")):
        raise RltunedError("training needs TensorFlow: pip install 'rltuned[train]'")
    from rltuned.learn import command
    from rltuned.learn.progress import progress_bar

    slurm = {"tasks": 1, **_slurm_options(options)}
    swept = seeds is not None or objectives is not None
    if executor == "slurm" and not swept:
        raise click.UsageError("--executor slurm is for sweeps: give --seeds or --objectives")
    settings = command.settings(name=name, budget=budget, iterations=iterations, window=window, rule=rule, **options)
    cores = processes or len(os.sched_getaffinity(0))
    with progress_bar() as report:
        if from_sacct is not None:
            sites = [_own_site(load(config_path).config, from_sacct, clusters, report)]
        else:
            sites = command.read_sites(traces, clusters, form=form, skip_bad=skip_bad)
        line = partial(command.line, traces, clusters, from_sacct, form=form, skip_bad=skip_bad)
        if swept:
            runs = command.sweep(sites, settings, out, seeds, objectives, line, _revision(), cores)
            for ended in command.swept(runs, executor, out, slurm):
                click.echo(json.dumps(ended) if as_json else command.sentence(ended))
            return
        result = command.run(
            sites,
            settings,
            out,
            command=line(settings),
            revision=_revision(),
            processes=cores,
            resume=resume,
            minutes=budget,
            report=report,
        )
    if as_json:
        emit(command.as_dict(result))
        return
    for told in command.lines(result):
        click.echo(told)


def _check_sites(traces: tuple[str, ...], clusters: tuple[str, ...], from_sacct: float | None) -> None:
    if bool(traces) == (from_sacct is not None):
        raise click.UsageError("what to learn from: either --trace FILE with --cluster SPEC, or --from-sacct DAYS")
    if traces and len(traces) != len(clusters):
        raise click.UsageError(
            f"{len(traces)} traces and {len(clusters)} clusters: give one --cluster for each --trace"
        )
    if len(clusters) > 1 and not traces:
        raise click.UsageError("--from-sacct has one cluster")


def _defaulted(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT


def _train_peer(
    peer: str, files: tuple[str, str, Path], given: dict[str, Any], reading: dict[str, Any], *, as_json: bool
) -> None:
    """`train --peer`. `files`: trace, cluster, output. `given`: options that were given."""
    from rltuned.daemon.clock import SystemClock
    from rltuned.learn import peers
    from rltuned.learn.progress import progress_bar

    estimates = given.pop("estimates", "true")
    settings = peers.from_options(peer, given)
    try:
        with progress_bar() as report:
            result, path = peers.train_from_files(
                *files, settings, SystemClock().monotonic, estimates, _revision(), report, **reading
            )
    except ImportError as error:
        raise RltunedError(f"training needs TensorFlow: pip install 'rltuned[train]' ({error})") from error
    if as_json:
        emit({"manifest": str(path), "epochs": len(result.curve), "validation": result.validation})
    else:
        click.echo(peers.sentence(result, path))
    if result.interrupted:
        raise KeyboardInterrupt


def _own_site(config: Config, days: float, clusters: tuple[str, ...], report: Any) -> Any:
    """This site's jobs of the last days, and its nodes (or the cluster that is given instead)."""
    from rltuned.daemon.clock import SystemClock
    from rltuned.evaluate import site
    from rltuned.learn.curriculum import Site
    from rltuned.slurm.connect import open_reader, runner
    from rltuned.workload import read_shape

    clock = SystemClock()
    if clusters:
        shape = read_shape(clusters[0])
    else:
        reader = open_reader(config.slurm)
        shape = site.live_shape(reader.snapshot(clock.time()), reader.facts().cluster_name)
    return Site(site.history(site.asker(runner(config.slurm)), days, clock.time(), _remark, report), shape)


def _remark(sentence: str) -> None:
    """Something that the user should know, and that stops nothing."""
    click.echo(f"rltuned: {sentence}", err=True)


@train.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory for the model.")
@click.option("--rule", default="saf", show_default=True, help="Plain rule to imitate.")
@click.option("--name", default="base", show_default=True, help="Name of the model.")
@click.option("--seed", default=7, show_default=True, help="The same seed gives the same weights.")
@click.option("--states", default=None, type=click.IntRange(min=1), help="Generated queue states to learn from.")
@click.option("--steps", default=None, type=click.IntRange(min=1), help="Gradient steps.")
@json_option
def imitate(
    out: Path, rule: str, name: str, seed: int, states: int | None, steps: int | None, *, as_json: bool
) -> None:
    """Warm-start an actor: fit it to a plain rule on a large variety of generated queue states (DL2's first phase)."""
    try:
        from rltuned.learn.imitate import ImitateSettings, write_model
        from rltuned.learn.imitate import imitate as fit
        from rltuned.learn.progress import progress_bar
    except ImportError as error:
        raise RltunedError(f"training needs TensorFlow: pip install 'rltuned[train]' ({error})") from error
    settings = ImitateSettings(rule=rule, name=name, seed=seed)
    if states is not None:
        settings = replace(settings, states=states)
    if steps is not None:
        settings = replace(settings, steps=steps)
    with progress_bar() as report:
        result = fit(settings, report)
    path = write_model(result, out, _revision())
    if as_json:
        emit({"manifest": str(path), "unseen": asdict(result.unseen), "shifted": asdict(result.shifted)})
        return
    click.echo(
        f"{path}: Kendall tau {result.unseen.tau:.4f} on {result.unseen.states} unseen states, "
        f"{result.shifted.tau:.4f} on {result.shifted.states} of other clusters"
    )


@train.command()
@click.option("--trace", required=True, help="Jobs, as `rltuned traces` reads them.")
@click.option("--cluster", required=True, help="For example 16x8:a100, or FILE.json.")
@click.option("--estimates", default="noisy:1.5", show_default=True, help="true, noisy:SIGMA or limit.")
@click.option("--rule", default="saf", show_default=True, type=click.Choice(["saf", "sjf", "qssf"]), help="Base rule.")
@click.option("--window", default=256, show_default=True, type=click.IntRange(min=2), help="Jobs of a window.")
@click.option("--windows", default=100, show_default=True, type=click.IntRange(min=2), help="How many windows.")
@click.option("--seed", default=7, show_default=True, type=click.IntRange(min=0), help="Of windows and estimates.")
@click.option("--processes", type=click.IntRange(min=1), help="That play windows.  [default: cores]")
@click.option("--form", metavar="FORMAT", help="Format of the trace. [default: by its first lines]")
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be read and go on.")
@json_option
def headroom(
    trace: str, cluster: str, processes: int | None, form: str | None, *, skip_bad: bool, as_json: bool, **options: Any
) -> None:
    """What a better order could gain at a site, before anybody trains for it; about a minute.

    The rule that a model would correct is played on windows of the trace's training part, then with one thing changed at a
    time: told the true run times, with waiting counted, with a small bonus on each column that a network sees. Ratios are to
    the rule on expected run times. docs/training.md says how to read them.

    \b
    Example:
      rltuned train headroom --trace jobs.csv.gz --cluster 16x8:a100 --estimates noisy:1.5
    """
    try:
        from rltuned import show
        from rltuned.learn import command, headroom
        from rltuned.learn.progress import progress_bar
        from rltuned.learn.rollouts import Crew
    except ImportError as error:
        raise RltunedError(f"this needs Numba: pip install 'rltuned[simulate]' ({error})") from error
    command.check_estimates(options["estimates"])
    (site,) = command.read_sites([trace], [cluster], form=form, skip_bad=skip_bad)
    with progress_bar() as report, Crew(processes or len(os.sched_getaffinity(0))) as crew:
        found = headroom.headroom(site, crew=crew, report=report, **options)
    if as_json:
        emit(found.as_dict())
    else:
        show.headroom(console(), found.as_dict())


def _revision() -> str:
    """Git revision of the code, for the model's manifest; "unknown" outside a checkout."""
    head = Path(__file__).resolve().parents[1] / ".git"
    try:
        reference = (head / "HEAD").read_text(encoding="ascii").strip()
        if reference.startswith("ref: "):
            reference = (head / reference.removeprefix("ref: ")).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return "unknown"
    return reference


@cli.command("plan")
@config_option
@click.option("--limit", default=40, show_default=True, help="Jobs to print.")
@json_option
def plan_command(config_path: Path | None, limit: int, *, as_json: bool) -> None:
    """One cycle, printed as a diff against Slurm's own order. Writes nothing."""
    made = _fresh_record(load(config_path).config)
    if as_json:
        emit(made)
    else:
        from rltuned import show

        show.plan_diff(console(), made, limit)


@cli.command()
@click.argument("job_id", metavar="JOBID", type=click.IntRange(min=1))
@config_option
@click.option("--fresh", is_flag=True, help="Read Slurm now instead of the running daemon's last decision.")
@json_option
def explain(job_id: int, config_path: Path | None, *, fresh: bool, as_json: bool) -> None:
    """Why is this job at this rank? Answers from the daemon's last decision; without one, from a fresh plan."""
    from rltuned import show
    from rltuned.daemon import record
    from rltuned.daemon.loop import load_policy
    from rltuned.daemon.verdict import Auto
    from rltuned.decide import explain as explain_job

    config = load(config_path).config
    made: dict[str, Any] | None = None
    if not fresh:
        try:
            made = record.load(config.state.directory)
        except RltunedError as error:
            _remark(f"{error}; planning afresh")
    made = made if made is not None else _fresh_record(config)
    try:
        policy = load_policy(config.policy)
    except RltunedError as error:
        _remark(f"what moved the score is not known: {error}")
        policy = None
    answer = explain_job(made, job_id, policy.named(made["policy"]) if isinstance(policy, Auto) else policy)
    if as_json:
        emit(answer.as_dict())
    else:
        show.explanation(console(), answer)


def _fresh_record(config: Config) -> dict[str, Any]:
    """The record of a plan made now, with what the journal says about earlier cycles where it may be read."""
    from rltuned.cluster.changes import History
    from rltuned.daemon.clock import SystemClock
    from rltuned.daemon.history import Known, saved
    from rltuned.daemon.journal import Journal
    from rltuned.daemon.logs import make
    from rltuned.daemon.loop import load_policy
    from rltuned.daemon.metrics import Metrics
    from rltuned.daemon.planning import Planning
    from rltuned.daemon.rehearse import KERNELS, Here
    from rltuned.daemon.verdict import chosen
    from rltuned.decide import record
    from rltuned.slurm.connect import open_reader

    try:
        history = Journal.read(config.state.directory, config.state.mirror).history()
    except JournalError as error:
        _remark(f"planning without the journal: {error}")
        history = History()
    snapshot = open_reader(config.slurm).snapshot(SystemClock().time())
    try:
        known = saved(config.estimates, config.state.directory)
    except RltunedError as error:
        _remark(f"run times are the time limits: {error}")
        known = Known()
    policy, choice = chosen(load_policy(config.policy), snapshot, config.rehearsal)
    log = make(config.log.level, config.log.format, sys.stderr)
    rehearsal = Here(lambda: config.rehearsal, SystemClock(), log, Metrics(), config.state.directory / KERNELS)
    made = Planning(known.estimates, rehearsal, ended=known.ended)(snapshot, policy, config, history)
    return record(made) | {"policy_why": choice.why}


@cli.command()
@config_option
@json_option
def doctor(config_path: Path | None, *, as_json: bool) -> None:
    """Check versions, privileges, plugins, rate limiter, conflicting settings and leftovers; each with its remedy."""
    from rltuned import show
    from rltuned.daemon.checks import Severity, examine
    from rltuned.daemon.clock import SystemClock
    from rltuned.slurm.connect import open_reader

    config = load(config_path).config
    found = examine(open_reader(config.slurm), config, SystemClock())
    if as_json:
        emit([asdict(item) for item in found])
    else:
        show.findings(console(), found)
    if any(item.severity is Severity.ERROR for item in found):
        raise click.exceptions.Exit(EXIT_FINDINGS)


@cli.command()
@click.argument("what", required=False, type=click.Choice(["simulate", "queue", "scale"]))
@click.option("--repeats", default=200, show_default=True, type=click.IntRange(min=5), help="Calls per stage.")
@click.option("--seed", default=1, show_default=True, help="Of the synthetic queue.")
@click.option("--jobs", default=100_000, show_default=True, type=click.IntRange(min=100), help="Pending, of scale.")
@click.option("--nodes", default=5_000, show_default=True, type=click.IntRange(min=10), help="Of scale.")
@click.option(
    "--slurm",
    default="24.11",
    show_default=True,
    type=click.Choice(["22.05", "24.11", "26.05"]),
    help="Release whose answers scale reads.",
)
@config_option
@json_option
def bench(
    what: str | None,
    repeats: int,
    seed: int,
    jobs: int,
    nodes: int,
    slurm: str,
    config_path: Path | None,
    *,
    as_json: bool,
) -> None:
    """Speed of each stage on this machine, each beside a simpler way of doing it, in one run.

    Without an argument: the stages of the daemon, and the simulator where the extra [simulate] is installed. With "simulate":
    the simulator alone, jobs per second on one core beside the plain-Python loop that the compiled one replaces: five times
    REPEATS windows of 256 jobs, then 10,000 jobs of which thousands queue. Compiling, once for an installation, is stated
    apart. With "queue": how long the pending jobs of this cluster, as they are now, take to be ranked by the policy that the
    daemon would use; it reads Slurm and writes nothing. With "scale": whole cycles of an active daemon beside a queue of JOBS on
    NODES, a cycle for each twenty REPEATS, and how their time grows: Slurm's programs are stand-ins, all else is real.
    """
    from importlib.util import find_spec

    from rltuned import bench as benchmark
    from rltuned import show

    if what == "queue":
        of_queue, told = _bench_queue(config_path, repeats)
        emit(told) if as_json else show.measures(console(), of_queue)
        return
    if what == "scale":
        from rltuned import bench_scale

        with console(stderr=True).status("") as status:
            scaled = bench_scale.run(jobs, nodes, slurm, max(repeats // 20, 2), seed, status.update)
        emit(scaled) if as_json else show.scale(console(), scaled)
        return
    simulator = find_spec("numba") is not None
    if what and not simulator:
        raise click.UsageError("the simulator is not installed: pip install 'rltuned[simulate]'")
    measures: list[benchmark.Measure] = []
    result: dict[str, Any] = {}
    speeds = None
    screen = console(stderr=True)
    with screen.status("") as status:
        if what is None:
            measures, result = benchmark.run(repeats, seed, status.update)
        if simulator:
            from rltuned import bench_simulate

            speeds, simulated = bench_simulate.run(5 * repeats, seed, status.update)
            result = {**result, **simulated, "simpler": {**result.get("simpler", {}), **simulated["simpler"]}}
    if as_json:
        emit(result)
        return
    if what is None:
        show.measures(console(), measures)
        show.footprint(console(), result)
    if speeds is not None:
        show.speeds(console(), speeds, result)


def _bench_queue(config_path: Path | None, repeats: int) -> tuple[Any, dict[str, Any]]:
    """What `bench queue` measures."""
    from rltuned import bench as benchmark
    from rltuned.daemon.clock import SystemClock
    from rltuned.daemon.loop import load_policy
    from rltuned.daemon.verdict import chosen
    from rltuned.slurm.connect import open_reader

    config = load(config_path).config
    snapshot = open_reader(config.slurm).snapshot(SystemClock().time())
    if len(snapshot.jobs.pending) == 0:
        raise RltunedError(
            "bench queue: no job is pending on this cluster, so there is nothing to rank; `rltuned bench` makes a queue of its own"
        )
    policy, _ = chosen(load_policy(config.policy), snapshot, config.rehearsal)
    return benchmark.of_queue(snapshot, policy, repeats)


@cli.group()
def traces() -> None:
    """Look at job traces, and make some: CSV, SWF, Philly, Helios, Alibaba PAI, sacct (docs/workloads.md).

    A trace is one job per line with its submission, run time and GPUs. The least that CSV needs:

    \b
      submit_time,num_gpus,run_time
      0,1,600
      30,8,7200
    """


def _rows(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    first, colon, last = value.partition(":")
    if not colon or not (first or "0").isdigit() or not (last or "0").isdigit():
        raise click.BadParameter("expected FIRST:LAST, such as 0:1000")
    return int(first or 0), int(last) if last else sys.maxsize


@traces.command("describe")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--form", metavar="FORMAT", help="csv, swf, philly, helios, pai or sacct. [default: by the first line]")
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be read and go on.")
@click.option("--job-table", type=click.Path(path_type=Path), help="pai_job_table.csv: users and submissions of PAI.")
@click.option("--from", "start", metavar="TIME", help="Jobs submitted from here on: seconds as in the file, or a date.")
@click.option("--until", metavar="TIME", help="Jobs submitted before.")
@click.option(
    "--rows", metavar="FIRST:LAST", callback=_rows, help="Jobs by order of submission, from 0; LAST excluded."
)
@json_option
def traces_describe(
    file: Path,
    form: str | None,
    start: str | None,
    until: str | None,
    rows: tuple[int, int] | None,
    job_table: Path | None,
    *,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Statistics of a trace: jobs, waits, run times, GPUs, arrivals, demand.

    FILE may be packed with gzip or come from a pipe. Demand is the number of GPUs that the jobs would keep busy if none
    had to wait: compare it with the cluster. A line that cannot be read ends the command with FILE:LINE and the reason
    (exit code 11).

    \b
    Examples:
      rltuned traces describe philly.csv.gz --from 4062780 --until 6654780
      rltuned traces describe cluster_log.csv --from 2020-09-01 --json
      sacct -aPX -S 2026-01-01 -o $FIELDS | rltuned traces describe /dev/stdin
    with FIELDS=JobIDRaw,User,Account,Partition,QOS,Submit,Eligible,Start,End,ElapsedRaw,
    TimelimitRaw,ReqTRES,AllocTRES,NNodes,State
    """
    import math

    from rltuned import show
    from rltuned.learn.progress import progress_bar
    from rltuned.workload import between, describe, moment, read

    with progress_bar() as report:
        whole = read(file, form=form, skip_bad=skip_bad, progress=report, keep_unknown=True, job_table=job_table)
    part = between(
        whole,
        -math.inf if start is None else moment(start, whole.source),
        math.inf if until is None else moment(until, whole.source),
        rows,
    )
    described = describe(part).to_json()
    if as_json:
        emit(described)
    else:
        show.workload(console(), described)


@traces.command("generate")
@click.argument("preset", metavar="PRESET")
@click.option("--jobs", default=1024, show_default=True, type=click.IntRange(1, 10_000_000), help="How many.")
@click.option(
    "--cluster", required=True, help="20x8:p100 (nodes x GPUs : type), several with commas, or FILE.json[#path.in.it]."
)
@click.option(
    "--seed", default=7, show_default=True, type=click.IntRange(min=0), help="The same seed gives the same jobs."
)
@click.option("--load", default=1.0, show_default=True, help="Demand over the cluster's GPUs; above 1 the queue grows.")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="FILE.csv or FILE.csv.gz.")
def traces_generate(preset: str, jobs: int, cluster: str, seed: int, load: float, out: Path) -> None:
    """Generate a workload like that of a published trace, for a cluster.

    PRESET is philly, helios or pai: their run times, GPUs and bursts, with users who have habits and write time limits as
    people do (docs/workloads.md says what was counted where). No trace is needed. `rltuned evaluate --trace` and
    `rltuned traces describe` take the file.

    \b
    Examples:
      rltuned traces generate philly --jobs 2000 --cluster 20x8:p100 --load 0.9 --out jobs.csv.gz
      rltuned traces generate pai --jobs 500 --cluster 4x8:a100:128c:1024g,16x2:p100 --out jobs.csv
    """
    from rltuned.workload import read_shape
    from rltuned.workload.synthetic import generate
    from rltuned.workload.write import write_csv

    made = generate(preset, jobs, read_shape(cluster), seed, load)
    write_csv(made, out)
    click.echo(f"{out}: {len(made)} jobs over {made.submit_time[-1] / 86400:.2f} days")


@cli.command()
@click.option("--trace", help="Jobs: CSV, SWF, Philly, Helios, PAI or sacct -P; gzip or not. See `rltuned traces`.")
@click.option("--cluster", help="20x8:p100 (nodes x GPUs : type), several with commas, or FILE.json[#path.in.it].")
@click.option("--window", default=1024, show_default=True, help="Consecutive jobs of a window.")
@click.option("--windows", default=30, show_default=True, help="How many windows.")
@click.option("--seed", default=7, show_default=True, help="Draws windows, estimates and resamples.")
@click.option(
    "--policies",
    default=None,
    help="Names with commas: fifo-strict, fifo, sjf, saf, wfp3, unicep, f1, multifactor, qssf, rlscheduler, "
    "schedinspector, rl, rl+milp. [default: fifo-strict, the plain rules and rl]",
)
@click.option(
    "--estimates",
    default="true",
    show_default=True,
    help="What policies know of run times: true, noisy:SIGMA, limit (the users' own) or history (a predictor).",
)
@click.option(
    "--split",
    type=click.Choice(["all", "train", "validation", "test"]),
    default="all",
    show_default=True,
    help="Part of the trace, by time: the first 70 % of the jobs, the next 15 %, the last 15 %.",
)
@click.option(
    "--backfill",
    type=click.Choice(["easy", "slurm", "none"]),
    default="easy",
    show_default=True,
    help="One reservation per partition, one for each of the first jobs, or none at all.",
)
@click.option(
    "--placement",
    type=click.Choice(["best", "worst", "milp"]),
    default="best",
    show_default=True,
    help="Best fit, worst fit, or planned by the integer program.",
)
@click.option(
    "--start",
    type=click.Choice(["idle", "warm"]),
    default="idle",
    show_default=True,
    help="warm: the jobs before the window run and queue when it begins, by FIFO + EASY, the same for every policy.",
)
@click.option("--warm-jobs", type=click.IntRange(min=1), help="How many jobs before it. [default: as many as --window]")
@click.option(
    "--model", default=DEFAULT_MODEL, show_default=True, help="Of rl and rl+milp: a name, or a manifest's path."
)
@click.option("--rlscheduler", default="rlscheduler", help="Model file (.json) of the policy rlscheduler.")
@click.option("--schedinspector", default="schedinspector", help="Model file (.json) of the policy schedinspector.")
@click.option(
    "--top-k",
    default=64,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Jobs from the front of the ranking that the integer program places (rl+milp, --placement milp).",
)
@click.option(
    "--rehearsal/--no-rehearsal",
    default=True,
    show_default=True,
    help="Whether rl and rl+milp play the queue ahead, as the daemon does (docs/rehearsal.md).",
)
@click.option("--form", help="Format of the trace. [default: found out]")
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be read and go on.")
@click.option("--job-table", help="pai_job_table.csv, where the trace is pai_task_table.csv.")
@click.option(
    "--gate",
    is_flag=True,
    help="Instead: is the model, a plain rule or Slurm's own order the best for this site? Windows are recent and share no "
    'job; makes the verdict that policy.name = "auto" goes by.',
)
@click.option(
    "--from-sacct",
    type=click.FloatRange(0, 366, min_open=True),
    metavar="DAYS",
    help="With --gate: jobs of the last DAYS from sacct instead of --trace.",
)
@click.option(
    "--out",
    "verdict_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="VERDICT.json",
    help="With --gate: write the verdict there.",
)
@click.option(
    "--valid-days",
    type=click.FloatRange(1, 366),
    help="With --gate: for how long the daemon goes by the verdict. [default: 90]",
)
@config_option
@click.option(
    "--against",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="REPLAY.json",
    help="Instead: the same jobs as a replay on a real Slurm (`testbed replay`), and how far the simulator is from it.",
)
@click.option(
    "--json",
    "out",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="OUT",
    help="Write the report there; - for standard output instead of the table.",
)
@click.option("--plot", type=click.Path(file_okay=False, path_type=Path), help="Write box plots (PNG) into DIR.")
@click.option("--resume", is_flag=True, help="Go on where an interrupted run with the same --json stopped.")
@click.option(
    "--workers", "--jobs", type=click.IntRange(min=1), help="Processes of --executor local. [default: one per core]"
)
@click.option(
    "--executor",
    type=click.Choice(["local", "slurm"]),
    default="local",
    show_default=True,
    help="slurm: as an array job of the cluster that sbatch reaches (submitit); needs --json on a shared file system.",
)
@click.option("--slurm-partition", default="", help="Partition of the array job.")
@click.option("--slurm-tasks", default=64, show_default=True, type=click.IntRange(min=1), help="Tasks of the array.")
@click.option(
    "--slurm-parallel", default=256, show_default=True, type=click.IntRange(min=1), help="Tasks running at a time."
)
@click.option("--slurm-minutes", default=60, show_default=True, type=click.IntRange(min=1), help="Limit of each task.")
@click.option(
    "--slurm-option", multiple=True, metavar="NAME=VALUE", help="More for sbatch, e.g. account=lab. Repeatable."
)
@click.pass_context
def evaluate(
    context: click.Context,
    /,
    against: Path | None,
    out: str | None,
    plot: Path | None,
    *,
    resume: bool,
    workers: int | None,
    executor: str,
    gate: bool,
    from_sacct: float | None,
    verdict_path: Path | None,
    valid_days: float | None,
    config_path: Path | None,
    **options: Any,
) -> None:
    """Compare policies on the same jobs of a trace, in the simulator, with intervals.

    Windows of consecutive jobs are drawn once and run under every policy. Reported are means over the windows of wait,
    completion time (JCT), bounded slowdown and more, a lower bound that no schedule can beat, and for each pair of
    policies the 95 % interval of their ratio. docs/evaluation.md tells how to read them.

    \b
    Examples:
      The paper's protocol on Microsoft's trace
        rltuned evaluate --trace philly.csv.gz --cluster 20x8:p100
      What a site has: run times are uncertain, the cluster is busy when the window begins
        rltuned evaluate --trace jobs.sacct --cluster 16x8:a100 --window 256 --estimates history --start warm
      Two policies, later jobs than a model was trained on, report and plots
        rltuned evaluate --trace t.csv.gz --cluster 8x8 --policies saf,rl --split test --json r.json --plot plots/
      Many windows as an array job of a Slurm cluster; go on after an interruption
        rltuned evaluate --trace t.csv.gz --cluster 8x8 --windows 1000 --json r.json --executor slurm --resume
      Which policy should this site run? (docs/gate.md)
        rltuned evaluate --gate --from-sacct 30 --out /var/lib/rltuned/verdict.json
    """
    from rltuned.evaluate import against as replayed
    from rltuned.evaluate import report

    path = Path(out) if out and out != "-" else None
    only_gate = {"--from-sacct": from_sacct, "--out": verdict_path, "--valid-days": valid_days, "--config": config_path}
    if not gate and (misplaced := [flag for flag, value in only_gate.items() if value is not None]):
        raise click.UsageError(f"{misplaced[0]} goes with --gate")
    if gate:
        if against is not None or plot is not None or out == "-":
            raise click.UsageError("--against, --plot and --json - do not go with --gate")
        slurm = _slurm_options(options)
        default = click.core.ParameterSource.DEFAULT
        given = {name: value for name, value in options.items() if context.get_parameter_source(name) is not default}
        _gate(
            load(config_path).config,
            given,
            path,
            verdict_path,
            from_sacct=from_sacct,
            valid_days=valid_days,
            resume=resume,
            workers=workers,
            executor=executor,
            slurm=slurm,
        )
        return
    if against is not None:
        if plot is not None or resume:
            raise click.UsageError(
                f"{'--plot' if plot else '--resume'} does not go with --against: there are no windows"
            )
        result = replayed.against(against, options["model"], _revision())
        table = replayed.table(result)
    else:
        result = _evaluated(path, resume=resume, workers=workers, executor=executor, options=options)
        table = report.table(result)
    if path is not None:
        report.write(result, path)
    if plot is not None:
        from rltuned.evaluate import plots

        plots.draw(result, plot)
    if out == "-":
        click.echo(report.text(result), nl=False)
    else:
        report.show(console(), table)


def _slurm_options(options: dict[str, Any]) -> dict[str, Any]:
    """Takes those of --executor slurm out of the options."""
    return {name.removeprefix("slurm_"): options.pop(name) for name in list(options) if name.startswith("slurm_")}


def _gate(
    config: Config,
    given: dict[str, Any],
    report_path: Path | None,
    verdict_path: Path | None,
    *,
    from_sacct: float | None,
    valid_days: float | None,
    resume: bool,
    workers: int | None,
    executor: str,
    slurm: dict[str, Any],
) -> None:
    """`evaluate --gate`. `given`: options of an evaluation that were typed; the others are as the daemon has them."""
    from rltuned.cluster.verdict import SLURM
    from rltuned.daemon.clock import SystemClock
    from rltuned.daemon.files import write_atomic
    from rltuned.evaluate import executors, gate, report, site
    from rltuned.evaluate.run import evaluate as run_all
    from rltuned.evaluate.settings import from_options
    from rltuned.learn.progress import progress_bar
    from rltuned.slurm.connect import open_reader, runner
    from rltuned.workload import read, read_shape

    if (given.get("trace") is None) == (from_sacct is None):
        raise click.UsageError("--gate needs the site's jobs: either --from-sacct DAYS or --trace FILE")
    if from_sacct is None and given.get("cluster") is None:
        raise click.UsageError("--gate with --trace needs --cluster: the file need not be of this cluster")
    if report_path is None and (resume or executor == "slurm"):
        raise click.UsageError(
            f"{'--resume' if resume else '--executor slurm'} needs --json OUT: work is kept beside it"
        )
    if verdict_path is not None and not os.access(verdict_path.parent, os.W_OK | os.X_OK):
        raise RltunedError(f"{verdict_path}: cannot be written: is {verdict_path.parent} there, and yours?")
    if differing := gate.not_judged(config):
        _remark(f"the gate plays the defaults of {', '.join(differing)}, where your configuration differs")
    clock = SystemClock()
    length = given.pop("window", None)
    settings = from_options(
        {
            "trace": "",
            "cluster": "",
            "policies": ",".join(gate.CANDIDATES),
            "estimates": config.estimates.source,
            "rehearsal": config.rehearsal.enabled != "off",
            "top_k": config.placement.top_k,
            "model": config.policy.model,
            "start": "warm",
            "gate": True,
            "from_sacct": from_sacct,
            **given,
        }
    )
    with progress_bar() as progress:
        if settings.cluster:
            shape = read_shape(settings.cluster)
        else:
            reader = open_reader(config.slurm)
            shape = site.live_shape(reader.snapshot(clock.time()), reader.facts().cluster_name)
        if from_sacct is not None:
            jobs = site.history(site.asker(runner(config.slurm)), from_sacct, clock.time(), _remark, progress)
        else:
            form, skip_bad = settings.form, settings.skip_bad
            jobs = read(settings.trace, form=form, skip_bad=skip_bad, progress=progress, job_table=settings.job_table)
        evaluation = gate.prepare(settings, jobs, shape, _revision(), length)
        chosen = executors.chosen(executor, workers, report_path, slurm)
        result = run_all(evaluation, chosen, report_path, resume=resume, progress=progress)
    made = gate.verdict(result, evaluation.settings, clock.time(), valid_days or gate.VALID_DAYS)
    if report_path is not None:
        report.write(result, report_path)
    for line in gate.lines(made):
        click.echo(line)
    if verdict_path is not None:
        try:
            write_atomic(verdict_path, gate.text(made).encode())
        except OSError as error:
            raise RltunedError(f"{verdict_path}: cannot be written: {error.strerror or error}") from error
        click.echo(f'{verdict_path}: written; a daemon with policy.name = "auto" takes it over on SIGHUP')
    if made["chosen"] == SLURM:
        raise click.exceptions.Exit(EXIT_UNPROVEN)


def _evaluated(
    path: Path | None, *, resume: bool, workers: int | None, executor: str, options: dict[str, Any]
) -> dict[str, Any]:
    """The report of `evaluate`."""
    from rltuned.evaluate import executors
    from rltuned.evaluate.run import evaluate as run_all
    from rltuned.evaluate.run import prepare
    from rltuned.evaluate.settings import from_options
    from rltuned.evaluate.state import state_path
    from rltuned.learn.progress import progress_bar

    for name in ("trace", "cluster"):
        if not options[name]:
            raise click.UsageError(f"Missing option '--{name}'.")
    if path is None and (resume or executor == "slurm"):
        raise click.UsageError(
            f"{'--resume' if resume else '--executor slurm'} needs --json OUT: work is kept beside it"
        )
    if options["warm_jobs"] and options["start"] == "idle":
        raise click.UsageError("--warm-jobs: an idle start has no jobs before the window; add --start warm")
    slurm = _slurm_options(options)
    settings = from_options(options)
    if resume and path is not None and not state_path(path).exists():
        _remark(f"nothing to resume beside {path}: beginning anew")
    with progress_bar() as progress:
        evaluation = prepare(settings, _revision(), progress)
        chosen = executors.chosen(executor, workers, path, slurm)
        return run_all(evaluation, chosen, path, resume=resume, progress=progress)


@cli.command()
@click.option("--jobs", default=1500, show_default=True, type=click.IntRange(1, 100_000), help="How many come.")
@click.option(
    "--preset",
    default="helios",
    show_default=True,
    type=click.Choice(["philly", "helios", "pai"]),
    help="Published trace that the generated jobs resemble.",
)
@click.option("--seed", default=7, show_default=True, help="The same seed gives the same jobs, people and summary.")
@click.option(
    "--load",
    default=1.4,
    show_default=True,
    type=click.FloatRange(0, 100, min_open=True),
    help="Demand over capacity while jobs come; above 1 the queue grows.",
)
@click.option("--cluster", default="", help="For example 20x8:a100, or FILE.json. [default: 80 nodes, three GPU types]")
@click.option("--policy", default="model", show_default=True, help="`model`, or a plain rule: saf, sjf, wfp3, fifo …")
@click.option(
    "--estimates",
    default="history",
    show_default=True,
    help="What the daemon knows of run times: history (predicted from finished jobs), limit, noisy:SIGMA, true.",
)
@click.option(
    "--placement",
    default=PlacementApply.EXCLUDE_NODES.value,
    show_default=True,
    type=click.Choice([how.value for how in PlacementApply]),
    help="How placement reaches Slurm. What oversubscribe does cannot all be undone on Slurm 24.11.",
)
@click.option(
    "--speed", default=0.0, type=click.FloatRange(0), help="Virtual seconds per second at most. [default: no bound]"
)
@click.option(
    "--seconds", default=None, type=click.FloatRange(0, min_open=True), help="Stop after so many real seconds."
)
@click.option(
    "--metrics-port", default=0, type=click.IntRange(0, 65535), help="Port on 127.0.0.1. [default: any free one]"
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Directory for configuration, log, last decision and summary. [default: ~/.cache/rltuned/demo]",
)
@json_option
def demo(
    *, speed: float, seconds: float | None, state: Path | None, placement: str, as_json: bool, **settings: Any
) -> None:
    """See the daemon at work on a simulated cluster, beside the same cluster without it.

    The real daemon steers a simulated Slurm at high speed, among users who come, go, hold and change their jobs; a twin
    with the same jobs runs under Slurm's multifactor priorities alone. Needs no Slurm, no GPU and no root. Ctrl-C ends it with
    the summary so far. The first start compiles the simulator, which takes half a minute.
    """
    import math
    import shutil
    import signal
    import tempfile

    from rich.live import Live

    from rltuned import show
    from rltuned.daemon.clock import SystemClock

    screen = console(stderr=as_json)
    with screen.status("loading, the first time also compiling, the simulator …"):
        try:
            from rltuned.demo import Demo, DemoSettings, play
            from rltuned.simulate.rankers import compile_kernel
        except ImportError as error:
            raise RltunedError(
                f"the demonstration needs the simulator: pip install 'rltuned[simulate]' ({error})"
            ) from error
        compile_kernel()
    memory = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there, as in any temporary place
    fast = str(memory) if os.access(memory, os.W_OK) else None
    chosen = DemoSettings(placement=PlacementApply(placement), **settings)
    stopped: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    try:
        with tempfile.TemporaryDirectory(prefix="rltuned-demo-", dir=fast) as work, Demo(chosen, Path(work)) as shown:
            head = f"policy {shown.policy.name}   metrics {shown.url}"
            live = Live(console=screen, auto_refresh=False)
            if screen.is_terminal:
                live.start()
            else:
                screen.print(head)
            try:
                cut = play(
                    shown,
                    lambda scene: (
                        live.update(show.demo_picture(scene, head), refresh=True)
                        if screen.is_terminal
                        else screen.print(show.demo_line(scene), soft_wrap=True)
                    ),
                    SystemClock(),
                    stop=lambda: bool(stopped),
                    every=0.2 if screen.is_terminal else 3.0,
                    speed=speed,
                    seconds=math.inf if seconds is None else seconds,
                )
            finally:
                if screen.is_terminal:
                    live.stop()
            summary = shown.summary(interrupted=cut)
            place = state or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rltuned" / "demo"
            kept: Path | None = place
            try:
                shown.keep(place, summary)
            except OSError as error:
                screen.print(f"nothing was kept: {place}: {error.strerror}")
                kept = None
    finally:
        signal.signal(signal.SIGINT, before)
    if as_json:
        emit(summary)
    else:
        show.demo_summary(screen, summary)
        show.demo_next(screen, summary, kept, "rltuned" if shutil.which("rltuned") else sys.argv[0])
    if summary["restore"]["left"]:
        raise click.exceptions.Exit(EXIT_FINDINGS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors raised on purpose become one line and their exit code."""
    try:
        code = cli.main(args=arguments, prog_name="rltuned", standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("rltuned: interrupted", err=True)
        sys.exit(130)
    except RltunedError as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            click.echo(f"rltuned: {line}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (`| head`); nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)
