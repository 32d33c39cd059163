"""`rltuned evaluate`: policies on the same jobs, in the simulator. `rltuned gate`: which of them a site should run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rltuned import revision
from rltuned.cli.common import (
    EXIT_UNPROVEN,
    FILE,
    FILE_OR_DASH,
    NUMBER,
    Real,
    as_objective,
    check_outputs,
    config_option,
    console,
    given,
    load,
    processes,
    remark,
    usage,
    write,
)
from rltuned.core.errors import EvaluationError
from rltuned.core.installed import require
from rltuned.core.objective import DEFAULT

_OF_BOTH = (
    click.option("--trace", metavar="FILE", help="Jobs: CSV or sacct -P; gzip or not. See `rltuned traces`."),
    click.option("--cluster", help="20x8:p100 (nodes x GPUs : type), several with commas, or FILE.json."),
    click.option(
        "--from-slurm",
        is_flag=True,
        help="Cluster, scheduler parameters and weights of the Slurm that is reached from here, instead of --cluster. "
        "[default of gate with --from-sacct]",
    ),
    click.option(
        "--scheduler",
        metavar="PARAMETERS",
        help="SchedulerParameters of the simulated Slurm, as bf_interval=60,bf_window=2880 (also bf_resolution, "
        "bf_max_job_test, bf_max_job_user, bf_max_job_part, bf_max_job_start, bf_min_age_reserve, "
        "default_queue_depth). [default: with --from-slurm the site's, else those of a slurm.conf that says nothing, "
        "but for default_queue_depth: the whole queue]",
    ),
    click.option(
        "--split",
        type=click.Choice(["all", "train", "validation", "test"]),
        help="Part of the trace, by time: the first 70 % of the jobs, the next 15 %, the last 15 %. [default: all]",
    ),
    click.option(
        "--start",
        type=click.Choice(["idle", "warm"]),
        help="warm: the jobs before the window run and queue when it begins, by FIFO, the same for every policy. "
        "[default: idle; of gate: warm]",
    ),
    click.option("--warm-jobs", type=NUMBER, help="How many jobs before it. [default: as many as --window]"),
    click.option("--seed", type=click.IntRange(min=0), help="Of windows, estimates, resamples. [default: 7]"),
    click.option(
        "--model", help="Of rl: a name, or a manifest's path. [default: the shipped one; of gate: policy.model]"
    ),
    click.option(
        "--estimates",
        help="What policies know of run times: true, noisy:SIGMA, limit (the users' own) or history (a predictor). "
        "[default: true; of gate: estimates.source]",
    ),
    click.option(
        "--weights",
        metavar="WEIGHTS",
        help="Slurm's own order: usual (all factors weigh alike), fair-share (it decides), or a list as "
        "age=1000,fairshare=100000,gres/gpu=500. rl raises jobs in it; reported are the accounts that are worse off "
        "than in it, and the jobs that are late. [default with --from-slurm: the site's; of gate: usual]",
    ),
    click.option(
        "--objective",
        metavar="WEIGHTS",
        callback=as_objective,
        help="What J weighs, each over Slurm's own order (multifactor), and what rl is to want: mean wait, slowdown, "
        "99th percentile of the wait, idle GPU time while jobs wait. [default: of gate and with --from-slurm the "
        f"site's policy.objective, else {DEFAULT}]",
    ),
    click.option("--skip-bad", is_flag=True, default=None, help="Count lines that cannot be read and go on."),
    config_option,
    click.option("--workers", type=NUMBER, help="Processes. [default: one per core, one beside slurmctld]"),
)
"""Options that mean the same to both."""


def _of_both(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OF_BOTH):
        command = option(command)
    return command


@click.command()
@_of_both
@click.option("--window", default=1024, show_default=True, type=NUMBER, help="Jobs of a window.")
@click.option("--windows", default=30, show_default=True, type=NUMBER, help="How many windows.")
@click.option(
    "--policies",
    metavar="NAME,NAME…",
    help="fifo-strict, fifo, sjf, saf, wfp3, unicep, f1, multifactor, rl. [default: all of these]; "
    "multifactor-again: what differs by chance; FILE.json: another model, served as rl is. saf:0.2, rl:0.2: as the "
    "daemon serves it where lend.share is 0.2.",
)
@click.option(
    "--backfill",
    type=click.Choice(["slurm", "easy", "none"]),
    help="A reservation for each of the first jobs (sched/backfill), one per partition, or none at all. "
    "[default: slurm]",
)
@click.option(
    "--placement",
    type=click.Choice(["slurm", "best", "worst"]),
    help="As Slurm chooses nodes, best fit, or worst fit. [default: slurm]",
)
@click.option(
    "--easy",
    is_flag=True,
    help="EASY backfill and best fit, the protocol of the literature (--backfill easy --placement best).",
)
@click.option(
    "--json",
    "out",
    type=FILE_OR_DASH,
    metavar="OUT",
    help="Write the report there; - for standard output instead of the table.",
)
def evaluate(out: str | None, *, workers: int | None, config_path: Path | None, easy: bool, **options: Any) -> None:
    """Compare policies on the same jobs of a trace.

    Windows of consecutive jobs are drawn once and run under every policy, in the simulator. Reported are means over the
    windows of wait, completion time (JCT), bounded slowdown and more, and for each pair of policies the 95 % interval
    of their ratio. docs/evaluation.md tells how to read them.

    \b
    Examples:
      The paper's protocol on Microsoft's trace
        rltuned evaluate --trace philly.csv.gz --cluster 20x8:p100 --easy
      What a site has: run times are uncertain, the cluster is busy when the window begins
        rltuned evaluate --trace jobs.sacct --cluster 16x8:a100 --window 256 --estimates history --start warm
      Two policies, later jobs than a model was trained on
        rltuned evaluate --trace t.csv.gz --cluster 8x8 --policies saf,rl --split test --json r.json
    """
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.pool import WorkerPool
    from rltuned.core.workers.progress import progress_bar
    from rltuned.lab.evaluate import evaluation_report, site
    from rltuned.lab.evaluate.evaluation import evaluate as run_all
    from rltuned.lab.evaluate.evaluation import prepare
    from rltuned.lab.evaluate.evaluation_settings import from_options

    _one_cluster(options)
    if options["trace"] is None:
        raise click.UsageError("Missing option '--trace'.")
    if not options["from_slurm"] and options["cluster"] is None:
        raise click.UsageError("Missing option '--cluster'.")
    if config_path is not None and not options["from_slurm"]:
        raise click.UsageError("--config goes with --from-slurm")
    if options["warm_jobs"] and options["start"] != "warm":
        raise click.UsageError("--warm-jobs: an idle start has no jobs before the window; add --start warm")
    path = Path(out) if out and out != "-" else None
    check_outputs({"--json": path})
    if easy:
        options["backfill"], options["placement"] = options["backfill"] or "easy", options["placement"] or "best"
    with usage():
        settings, shape = from_options({"cluster": "", **given(options)}), None
    pool = WorkerPool(processes(workers))
    if options["from_slurm"]:
        config = load(config_path).config
        if options["objective"] is None:
            settings = replace(settings, objective=config.policy.objective)
        settings, shape = site.of_slurm(settings, config.slurm, SystemClock().time(), remark)
    with progress_bar() as progress:
        result = run_all(prepare(settings, revision(), progress, shape), pool, progress=progress)
    _refuse_empty(result)
    if path is not None:
        evaluation_report.write(result, path)
    if out == "-":
        click.echo(evaluation_report.text(result), nl=False)
    else:
        evaluation_report.show(console(), evaluation_report.table(result))


@click.command()
@_of_both
@click.option(
    "--from-sacct",
    type=Real(0, 366, min_open=True),
    metavar="DAYS",
    help="Jobs of the last DAYS from sacct, instead of --trace.",
)
@click.option("--window", type=NUMBER, help="Jobs of a window. [default: 3000 after 1000, or fewer in a short history]")
@click.option("--windows", type=NUMBER, help="How many windows, at most. [default: 30]")
@click.option("--shares", metavar="SHARE,SHARE…", help="lend.share to try. [default: 0,.05,.1,.2,.5,1]")
@click.option(
    "--out",
    "verdict_path",
    type=FILE,
    metavar="VERDICT.json",
    help="Write the verdict there.",
)
@click.option("--valid-days", type=Real(1, 366), help="For how long the daemon goes by the verdict. [default: 90]")
@click.option(
    "--json",
    "report_path",
    type=FILE,
    metavar="OUT",
    help="Write the report of the evaluation there, with the verdict.",
)
@click.option("--plot", "picture", type=FILE, metavar="OUT.svg|OUT.png", help="Draw the frontier there.")
def gate(
    from_sacct: float | None,
    window: int | None,
    verdict_path: Path | None,
    valid_days: float | None,
    report_path: Path | None,
    picture: Path | None,
    *,
    workers: int | None,
    config_path: Path | None,
    **options: Any,
) -> None:
    """Which policy is best for this site, and how much may jobs lend?

    Simulates the site's recent jobs, in windows that share no job, with smallest area first (saf) and with the model
    (rl), for each share that a waiting job may lend, beside Slurm's own order and chance. Makes the verdict that a
    policy.name and a lend.share of "auto" go by: of what harms nobody beyond chance and certainly waits less than
    Slurm's own order, that of the least J. What is not given is as the daemon is configured. docs/good-for-us.md
    explains it. Exit code 14: Slurm's own order; 13: too little history.

    \b
    Example:
      rltuned gate --from-sacct 30 --out /var/lib/rltuned/verdict.json
    """
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.pool import WorkerPool
    from rltuned.core.workers.progress import progress_bar
    from rltuned.lab.evaluate import evaluation_report, site
    from rltuned.lab.evaluate import gate as judged
    from rltuned.lab.evaluate.evaluation import evaluate as run_all
    from rltuned.records.gate_verdict import SLURM

    _one_cluster(options)
    if (options["trace"] is None) == (from_sacct is None):
        raise click.UsageError("gate needs the site's jobs: either --from-sacct DAYS or --trace FILE")
    if from_sacct is None and options["cluster"] is None and not options["from_slurm"]:
        raise click.UsageError("--trace needs --cluster, or --from-slurm: the file need not be of this cluster")
    check_outputs({"--json": report_path, "--out": verdict_path, "--plot": picture})
    if picture is not None and picture.suffix not in {".svg", ".png"}:
        raise click.UsageError(f"--plot: {picture.name} ends neither in .svg nor in .png")
    if picture is not None:
        require("--plot", "matplotlib")
    config = load(config_path).config
    if differing := judged.not_judged(config):
        remark(f"the gate simulates the defaults of {', '.join(differing)}, where your configuration differs")
    options["from_slurm"] = options["cluster"] is None
    with usage():
        settings = judged.as_configured(config, given(options | {"from_sacct": from_sacct}))
    pool, clock = WorkerPool(processes(workers)), SystemClock()
    with progress_bar() as progress:
        settings, jobs, shape = site.of_settings(settings, config.slurm, clock.time(), remark, progress)
        evaluation = judged.prepare(settings, jobs, shape, revision(), window)
        remark(judged.duration(evaluation, pool.processes))
        result = run_all(evaluation, pool, progress=progress)
    made = judged.verdict(result, evaluation.settings, clock.time(), valid_days or judged.VALID_DAYS)
    if report_path is not None:
        evaluation_report.write({**result, "verdict": made}, report_path)
    if picture is not None:
        from rltuned.lab.evaluate.frontier_picture import draw

        draw(made, picture)
    evaluation_report.show(console(), judged.frontier(made))
    for line in judged.lines(made):
        click.echo(line)
    if verdict_path is not None:
        write(verdict_path, judged.text(made))
        click.echo(f'{verdict_path}: written; a daemon with policy.name = "auto" takes it over on SIGHUP')
    if made["chosen"] == SLURM:
        raise click.exceptions.Exit(EXIT_UNPROVEN)


def _one_cluster(options: Mapping[str, Any]) -> None:
    if options["cluster"] is not None and options["from_slurm"]:
        raise click.UsageError("--cluster and --from-slurm both name a cluster")


def _refuse_empty(result: Mapping[str, Any]) -> None:
    """Raises EvaluationError where no job of any window can run on the cluster: there is nothing to compare."""
    windows = result["windows"]
    if all(window["rejected"]["count"] == window["jobs"] for window in windows):
        job = windows[0]["rejected"]["jobs"][0]
        raise EvaluationError(
            f"no job of these {len(windows)} windows can run on {result['meta']['cluster']['text']}, e.g. job "
            f"{job['job']}: {job['reason']}; name a --cluster that has what the jobs ask for"
        )
