"""`rltuned evaluate`: policies on the same jobs, in the simulator. `rltuned gate`: which of them a site should run.
`rltuned tune`: the best that slurm.conf alone can do.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rltuned import revision
from rltuned.cli.common import (
    FILE,
    FILE_OR_DASH,
    check_outputs,
    console,
    emit,
    given,
    json_option,
    load,
    processes,
    remark,
    usage,
    write,
)
from rltuned.cli.lab_options import options, whose_jobs
from rltuned.core.errors import EvaluationError, ExitCode
from rltuned.core.installed import require
from rltuned.core.objective import DEFAULT

_EVALUATION = (
    *("cluster", "from_slurm", "slurm", "split", "start", "seed"),
    *("model", "estimates", "weights", "objective", "skip_bad", "window", "windows", "workers"),
)


@click.command()
@options(
    *("trace", *_EVALUATION),
    cluster="",
    start="idle",
    model="the shipped one",
    estimates="true",
    weights="with --from-slurm what Slurm shows, else none",
    objective=f"with --from-slurm the site's policy.objective, else {DEFAULT}",
    window="1024",
    windows="30",
)
@click.option(
    "--policies",
    metavar="NAME,NAME…",
    help="fifo-strict, fifo, sjf, saf, wfp3, unicep, f1, multifactor, rl. [default: all of these]; "
    "multifactor-again: what differs by chance; FILE.json: another model, served as rl is. saf:0.2, rl:0.2: as the "
    "daemon serves it where lend.share is 0.2.",
)
@click.option(
    "--easy",
    is_flag=True,
    help="EASY backfill and best fit, the protocol of the literature (--slurm backfill=easy,placement=best).",
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
    from rltuned.lab.evaluate import evaluation, evaluation_report, site
    from rltuned.lab.evaluate.evaluation_settings import from_options
    from rltuned.lab.evaluate.policies import contender
    from rltuned.simulate.shape import read_shape
    from rltuned.simulate.workload.readers import read

    if options["trace"] is None:
        raise click.UsageError("Missing option '--trace'.")
    whose_jobs(options)
    if config_path is not None and options["cluster"] is not None:
        raise click.UsageError("--config goes with --from-slurm")
    path = Path(out) if out and out != "-" else None
    check_outputs({"--json": path})
    if easy:  # what is said of --slurm comes later, and so counts
        options["slurm"] = ",".join(filter(None, ["backfill=easy,placement=best", options["slurm"]]))
    with usage():
        settings = from_options(options)
    pool = WorkerPool(processes(workers))
    if settings.cluster:
        shape = read_shape(settings.cluster)
    else:
        config = load(config_path).config
        if options["objective"] is None:
            settings = replace(settings, objective=config.policy.objective)
        settings, shape = site.of_slurm(settings, config.slurm, SystemClock().time(), remark)
    for name in settings.policies:
        contender(name, settings)  # a model that is refused is refused before a trace is read
    with progress_bar() as progress:
        jobs = read(settings.trace, skip_bad=settings.skip_bad, progress=progress)
        asked = evaluation.ready(settings, jobs, shape, revision())
        result = evaluation_report.assemble(asked, evaluation.evaluate(asked, pool, progress=progress))
    _refuse_empty(result)
    if path is not None:
        write(path, evaluation_report.text(result), mode=0o666)
    if out == "-":
        click.echo(evaluation_report.text(result), nl=False)
    else:
        evaluation_report.show(console(), evaluation_report.table(result))


@click.command()
@options(
    *("trace", "from_sacct", *_EVALUATION, "shares", "names", "valid_days"),
    start="real; with --cluster warm",
    model="policy.model",
    window="3000 after 1000, or fewer in a short history",
    windows="30, or as many as there are",
)
@click.option(
    "--out",
    "verdict_path",
    type=FILE,
    metavar="VERDICT.json",
    help="Write the verdict there.",
)
@click.option(
    "--json",
    "report_path",
    type=FILE,
    metavar="OUT",
    help="Write the report of the evaluation there, with the verdict.",
)
@click.option("--plot", "picture", type=FILE, metavar="OUT.svg|OUT.png", help="Draw the frontier there.")
def gate(
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
    from rltuned.lab.evaluate.evaluation_settings import not_judged
    from rltuned.lab.evaluate.measure import how_long
    from rltuned.records.gate_verdict import SLURM

    whose_jobs(options)
    check_outputs({"--json": report_path, "--out": verdict_path, "--plot": picture})
    if picture is not None and picture.suffix not in {".svg", ".png"}:
        raise click.UsageError(f"--plot: {picture.name} ends neither in .svg nor in .png")
    if picture is not None:
        require("--plot", "matplotlib")
    config = load(config_path).config
    if differing := not_judged(config):
        remark(f"the gate simulates the defaults of {', '.join(differing)}, where your configuration differs")
    with usage():
        settings = judged.asked(config, given(options))
    pool, clock = WorkerPool(processes(workers)), SystemClock()
    with progress_bar() as progress:
        settings, jobs, shape = site.of_settings(settings, config.slurm, clock.time(), remark, progress)
        evaluation = judged.prepare(settings, jobs, shape, revision(), window)
        remark(how_long(evaluation.cases, evaluation.settings.policies, pool.processes))
        measured = run_all(evaluation, pool, progress=progress)
        made = judged.verdict(evaluation, measured, clock.time(), valid_days or judged.VALID_DAYS)
        made = judged.with_names(made, pool, progress)
    if report_path is not None:
        report = {**evaluation_report.assemble(evaluation, measured), "verdict": made.as_dict()}
        write(report_path, evaluation_report.text(report), mode=0o666)
    if picture is not None:
        from rltuned.lab.evaluate.frontier_picture import draw

        draw(made, picture)
    evaluation_report.show(console(), made.table())
    for line in made.lines():
        click.echo(line)
    if verdict_path is not None:
        write(verdict_path, made.text())
        click.echo(f'{verdict_path}: written; a daemon with policy.name = "auto" takes it over on SIGHUP')
    if made.chosen == SLURM:
        raise click.exceptions.Exit(ExitCode.UNPROVEN)


@click.command()
@options(
    *("trace", "from_sacct", "cluster", "weights", "slurm", "estimates", "objective"),
    *("seed", "skip_bad", "window", "workers"),
    window="up to 3000",
)
@click.option(
    "--budget",
    type=click.IntRange(min=5),  # differential evolution needs a population of so many
    metavar="N",
    help="How many candidates are tried. [default: 300]",
)
@click.option(
    "--accounts-may-lose",
    is_flag=True,
    help="Search also what gives accounts less than they have now: what fair share weighs is then free.",
)
@click.option("--rltuned/--no-rltuned", default=True, help="Whether to judge rltuned, too; it takes most of the time.")
@json_option
def tune(
    budget: int | None,
    window: int | None,
    workers: int | None,
    config_path: Path | None,
    *,
    rltuned: bool,
    accounts_may_lose: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """What is the best that slurm.conf alone can do here?

    Tries a few hundred slurm.confs on the site's recent jobs in the simulator: weights of the priority, PriorityMaxAge,
    PriorityFavorSmall, SMALL_RELATIVE_TO_TIME, backfill's parameters, Weight of the nodes of a GPU type. The best one
    is judged on later jobs, which the search has not seen, by the bounds of `rltuned gate`; if it is certainly better,
    the lines are printed, beside what rltuned gains without them and on top. Only reads Slurm, and writes nothing: the
    lines are yours to put in. Exit code 14: your slurm.conf is as good; 13: too little history.

    \b
    Examples:
      rltuned tune --from-sacct 30
      rltuned tune --trace jobs.csv.gz --cluster 16x8:a100 --weights age=1000,fairshare=100000
    """
    from rltuned.controller.health.clock import SystemClock
    from rltuned.core.workers.progress import progress_bar
    from rltuned.lab.evaluate import evaluation_report, site
    from rltuned.lab.evaluate import tune as tuning
    from rltuned.lab.evaluate.evaluation_settings import as_configured

    whose_jobs(asked)
    config = load(config_path).config
    if asked["cluster"] is not None and asked["weights"] is None:
        asked["weights"] = "usual"
    with usage():
        settings = as_configured(config, given(asked))
    with progress_bar() as progress:
        settings, jobs, shape = site.of_settings(settings, config.slurm, SystemClock().time(), remark, progress)
        found = tuning.tune(
            settings,
            jobs,
            shape,
            revision(),
            processes=processes(workers),
            budget=budget or tuning.BUDGET,
            length=window,
            fairly=not accounts_may_lose,
            daemon=rltuned,
            progress=progress,
        )
    if as_json:
        emit(found.as_dict())
    else:
        evaluation_report.show(console(), found.table())
        click.echo(found.reason)
        for line in found.lines():
            click.echo(line)
    if not found.better:
        raise click.exceptions.Exit(ExitCode.UNPROVEN)


def _refuse_empty(result: Mapping[str, Any]) -> None:
    """Raises EvaluationError where no job of any window can run on the cluster: there is nothing to compare."""
    windows = result["windows"]
    if all(window["rejected"]["count"] == window["jobs"] for window in windows):
        job = windows[0]["rejected"]["jobs"][0]
        raise EvaluationError(
            f"no job of these {len(windows)} windows can run on {result['meta']['cluster']['text']}, e.g. job "
            f"{job['job']}: {job['reason']}; name a --cluster that has what the jobs ask for"
        )
