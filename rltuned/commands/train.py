"""`rltuned train`, `train imitate`, `train headroom`."""

import json
import os
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from rltuned import revision
from rltuned.commands.common import (
    config_option,
    console,
    emit,
    json_option,
    load,
    refuse_slurm_options,
    remark,
    slurm_options,
    usage,
)


@click.group(invoke_without_command=True)
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
    help="What is minimised; mix: wait, slowdown and the tail of the wait.",
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
@click.option(
    "--iterations", type=click.IntRange(min=0), help="Iterations of PPO. [default: as many as --budget allows]"
)
@click.option("--window", type=click.IntRange(min=2), help="Most jobs of a window. [default: 1024]")
@click.option(
    "--processes", type=click.IntRange(min=1), help="Worker processes that simulate windows. [default: cores]"
)
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
    "--rule",
    metavar="RULE",
    help="Base rule; its metric is the unit of rewards. With saf, sjf or qssf the network corrects the rule, with any "
    "other rule it replaces it. [default: saf]",
)
@click.option(
    "--columns",
    metavar="NAME,NAME…",
    help="The network sees only these columns of the state: what are the others worth? "
    "[default: all; docs/features.md]",
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
    rule: str | None,
    *,
    resume: bool,
    skip_bad: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a policy on jobs of the past (needs the extra [train]).

    A warm start from hindsight, then reinforcement learning (PPO) on the simulator. The first 70 % of each trace is
    learned from, the next 15 % decides which checkpoint is kept; the rest is for `rltuned evaluate --split test`.
    docs/training.md explains every file in --out.

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
    refuse_slurm_options(context, executor)
    from rltuned.installed import require

    require("training", "tensorflow", "numba")
    from rltuned.daemon.clock import SystemClock
    from rltuned.learn import command
    from rltuned.workers.progress import progress_bar

    slurm = {"tasks": 1, **slurm_options(options)}
    swept = seeds is not None or objectives is not None
    if executor == "slurm" and not swept:
        raise click.UsageError("--executor slurm is for sweeps: give --seeds or --objectives")
    with usage():
        settings = command.settings(
            name=name, budget=budget, iterations=iterations, window=window, rule=rule, **options
        )
    cores = processes or len(os.sched_getaffinity(0))
    with progress_bar() as report:
        if from_sacct is not None:
            slurm_section, now = load(config_path).config.slurm, SystemClock().time()
            sites = [command.own_site(slurm_section, from_sacct, clusters, now, remark, report)]
        else:
            sites = command.read_sites(traces, clusters, form=form, skip_bad=skip_bad)
        line = partial(command.line, traces, clusters, from_sacct, form=form, skip_bad=skip_bad)
        if swept:
            runs = command.sweep(sites, settings, out, seeds, objectives, line, revision(), cores)
            for ended in command.swept(runs, executor, out, slurm):
                click.echo(json.dumps(ended) if as_json else command.sentence(ended))
            return
        result = command.run(
            sites,
            settings,
            out,
            command=line(settings),
            revision=revision(),
            processes=cores,
            resume=resume,
            minutes=budget,
            progress=report,
        )
    if as_json:
        emit(result.as_dict())
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
    from rltuned.installed import require

    require("training", "tensorflow", "numba")
    from rltuned.learn.imitate import ImitateSettings, write_model
    from rltuned.learn.imitate import imitate as fit
    from rltuned.workers.progress import progress_bar

    settings = ImitateSettings(rule=rule, name=name, seed=seed)
    if states is not None:
        settings = replace(settings, states=states)
    if steps is not None:
        settings = replace(settings, steps=steps)
    with progress_bar() as report:
        result = fit(settings, report)
    path = write_model(result, out, revision())
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
@click.option(
    "--processes", type=click.IntRange(min=1), help="Worker processes that simulate windows. [default: cores]"
)
@click.option("--form", metavar="FORMAT", help="Format of the trace. [default: by its first lines]")
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be read and go on.")
@json_option
def headroom(
    trace: str, cluster: str, processes: int | None, form: str | None, *, skip_bad: bool, as_json: bool, **options: Any
) -> None:
    """What a better order could gain at a site, before anybody trains for it; about a minute.

    The rule that a model would correct is played on windows of the trace's training part, then with one thing changed
    at a
    time: told the true run times, with waiting counted, with a small bonus on each column that a network sees. Ratios
        are to
    the rule on expected run times. docs/training.md says how to read them.

    \b
    Example:
      rltuned train headroom --trace jobs.csv.gz --cluster 16x8:a100 --estimates noisy:1.5
    """
    from rltuned.installed import needed

    with needed("train headroom"):
        from rltuned import show
        from rltuned.learn import command, headroom
        from rltuned.workers.pool import WorkerPool
        from rltuned.workers.progress import progress_bar
    with usage():
        command.check_estimates(options["estimates"])
    (site,) = command.read_sites([trace], [cluster], form=form, skip_bad=skip_bad)
    with progress_bar() as report, WorkerPool(processes or len(os.sched_getaffinity(0))) as pool:
        found = headroom.headroom(site, pool=pool, progress=report, **options)
    if as_json:
        emit(found.as_dict())
    else:
        show.headroom(console(), found.as_dict())
