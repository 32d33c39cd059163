"""`rltuned evaluate`: policies on the same jobs, in the simulator; with `--gate`, which of them a site should run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rltuned import revision
from rltuned.commands.common import (
    check_outputs,
    config_option,
    console,
    load,
    processes,
    refuse_slurm_options,
    remark,
    slurm_options,
    usage,
)
from rltuned.config import DEFAULT_MODEL, Config, SlurmSection
from rltuned.errors import EvaluationError, RltunedError

if TYPE_CHECKING:
    from rltuned.evaluate.settings import EvaluationSettings

EXIT_UNPROVEN = 14
"""`evaluate --gate` found nothing that is certainly better than Slurm's own order (docs/exit-codes.md)."""


@click.command()
@click.option("--trace", help="Jobs: CSV, SWF, Philly, Helios, PAI or sacct -P; gzip or not. See `rltuned traces`.")
@click.option("--cluster", help="20x8:p100 (nodes x GPUs : type), several with commas, or FILE.json[#path.in.it].")
@click.option("--window", default=1024, show_default=True, type=click.IntRange(min=1), help="Jobs of a window.")
@click.option("--windows", default=30, show_default=True, type=click.IntRange(min=1), help="How many windows.")
@click.option(
    "--seed", default=7, show_default=True, type=click.IntRange(min=0), help="Of windows, estimates, resamples."
)
@click.option(
    "--policies",
    default=None,
    help="Names with commas: fifo-strict, fifo, sjf, saf, wfp3, unicep, f1, multifactor, qssf, "
    "rl, rl+milp. [default: fifo-strict, the plain rules and rl]",
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
    type=click.Choice(["slurm", "easy", "none"]),
    default="slurm",
    show_default=True,
    help="A reservation for each of the first jobs (sched/backfill), one per partition, or none at all.",
)
@click.option(
    "--placement",
    type=click.Choice(["slurm", "best", "worst", "milp"]),
    default="slurm",
    show_default=True,
    help="As Slurm chooses nodes, best fit, worst fit, or milp: as Slurm, but jobs are kept off GPU types that are "
    "slow for them.",
)
@click.option(
    "--easy/--slurm-like",
    default=False,
    show_default=True,
    help="--easy: EASY backfill and best fit, the protocol of the literature (--backfill easy --placement best).",
)
@click.option(
    "--scheduler",
    default="",
    metavar="PARAMETERS",
    help="SchedulerParameters of the simulated Slurm, as bf_interval=60,bf_window=2880 (also bf_resolution, "
    "bf_max_job_test). [default: those of a slurm.conf that says nothing]",
)
@click.option(
    "--from-slurm",
    is_flag=True,
    help="Cluster and scheduler parameters of the Slurm that is reached from here, instead of --cluster.",
)
@click.option(
    "--start",
    type=click.Choice(["idle", "warm"]),
    default="idle",
    show_default=True,
    help="warm: the jobs before the window run and queue when it begins, by FIFO, the same for every policy.",
)
@click.option("--warm-jobs", type=click.IntRange(min=1), help="How many jobs before it. [default: as many as --window]")
@click.option(
    "--model", default=DEFAULT_MODEL, show_default=True, help="Of rl and rl+milp: a name, or a manifest's path."
)
@click.option(
    "--top-k",
    default=64,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Jobs from the front of the ranking whose nodes are planned (rl+milp, --placement milp).",
)
@click.option(
    "--rollout/--no-rollout",
    default=True,
    show_default=True,
    help="Whether rl and rl+milp make rollouts, as the daemon does (docs/rollout.md).",
)
@click.option("--form", help="Format of the trace. [default: found out]")
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be read and go on.")
@click.option("--job-table", help="pai_job_table.csv, where the trace is pai_task_table.csv.")
@click.option(
    "--gate",
    is_flag=True,
    help="Instead: is the model, a plain rule or Slurm's own order the best for this site? Windows are recent "
    'and share no job; makes the verdict that policy.name = "auto" goes by.',
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
    "--workers",
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes of --executor local. [default: one per core, one beside slurmctld]",
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

    refuse_slurm_options(context, executor)
    path = Path(out) if out and out != "-" else None
    default = click.core.ParameterSource.DEFAULT
    given = {name: value for name, value in options.items() if context.get_parameter_source(name) is not default}
    if given.pop("easy", False):
        given = {"backfill": "easy", "placement": "best", **given}
    options |= given
    if given.get("cluster") and options["from_slurm"]:
        raise click.UsageError("--cluster and --from-slurm both name a cluster")
    if config_path is not None and not (gate or options["from_slurm"]):
        raise click.UsageError("--config goes with --gate or --from-slurm")
    only_gate = {"--from-sacct": from_sacct, "--out": verdict_path, "--valid-days": valid_days}
    if not gate and (misplaced := [flag for flag, value in only_gate.items() if value is not None]):
        raise click.UsageError(f"{misplaced[0]} goes with --gate")
    check_outputs({"--json": path, "--out": verdict_path}, {"--plot": plot})
    if plot is not None:
        from rltuned.installed import require

        require("--plot", "matplotlib")
    if gate:
        if against is not None or plot is not None or out == "-":
            raise click.UsageError("--against, --plot and --json - do not go with --gate")
        slurm = slurm_options(options)
        given = {name: value for name, value in given.items() if name in options}
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
        result = replayed.against(against, options["model"], revision())
        table = replayed.table(result)
    else:
        reached = load(config_path).config.slurm if options["from_slurm"] else None
        result = _evaluated(path, reached, resume=resume, workers=workers, executor=executor, options=options)
        _refuse_empty(result)
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


def _refuse_empty(result: Mapping[str, Any]) -> None:
    """Raises EvaluationError where no job of any window can run on the cluster: there is nothing to compare."""
    windows = result["windows"]
    if all(window["rejected"]["count"] == window["jobs"] for window in windows):
        job = windows[0]["rejected"]["jobs"][0]
        raise EvaluationError(
            f"no job of these {len(windows)} windows can run on {result['meta']['cluster']['text']}, e.g. job "
            f"{job['job']}: {job['reason']}; name a --cluster that has what the jobs ask for"
        )


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
    from rltuned.evaluate import executors, gate, report
    from rltuned.evaluate.run import evaluate as run_all
    from rltuned.workers.progress import progress_bar

    if (given.get("trace") is None) == (from_sacct is None):
        raise click.UsageError("--gate needs the site's jobs: either --from-sacct DAYS or --trace FILE")
    if from_sacct is None and given.get("cluster") is None and not given.get("from_slurm"):
        raise click.UsageError(
            "--gate with --trace needs --cluster, or --from-slurm: the file need not be of this cluster"
        )
    if report_path is None and (resume or executor == "slurm"):
        raise click.UsageError(
            f"{'--resume' if resume else '--executor slurm'} needs --json OUT: work is kept beside it"
        )
    if differing := gate.not_judged(config):
        remark(f"the gate simulates the defaults of {', '.join(differing)}, where your configuration differs")
    clock = SystemClock()
    length = given.pop("window", None)
    with usage():
        settings = gate.as_configured(
            config, given | {"from_sacct": from_sacct, "from_slurm": given.get("cluster") is None}
        )
        gate.checked(settings)
        chosen = executors.chosen(executor, processes(executor, workers), report_path, slurm)
    _remark_on_placement(settings)
    with progress_bar() as progress:
        settings, jobs, shape = gate.site_of(settings, config.slurm, clock.time(), remark, progress)
        evaluation = gate.prepare(settings, jobs, shape, revision(), length)
        if isinstance(chosen, executors.LocalExecutor):
            remark(gate.duration(evaluation, chosen.workers))
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


def _remark_on_placement(settings: "EvaluationSettings") -> None:
    """Says so where a policy that is asked for cannot differ from another one."""
    from rltuned.evaluate.settings import Placement

    if "rl+milp" in settings.policies or settings.placement is Placement.MILP:
        remark(
            "all types of GPUs are alike, so nothing is kept off any node: rl+milp and "
            "--placement milp are the same as without"
        )


def _evaluated(
    path: Path | None,
    reached: SlurmSection | None,
    *,
    resume: bool,
    workers: int | None,
    executor: str,
    options: dict[str, Any],
) -> dict[str, Any]:
    """The report of `evaluate`. `reached`: the Slurm that shows the cluster; None: the options name one."""
    from rltuned.daemon.clock import SystemClock
    from rltuned.evaluate import executors, site
    from rltuned.evaluate.run import evaluate as run_all
    from rltuned.evaluate.run import prepare
    from rltuned.evaluate.settings import from_options
    from rltuned.evaluate.state import state_path
    from rltuned.workers.progress import progress_bar

    for name, missing in (("trace", not options["trace"]), ("cluster", reached is None and not options["cluster"])):
        if missing:
            raise click.UsageError(f"Missing option '--{name}'.")
    if path is None and (resume or executor == "slurm"):
        raise click.UsageError(
            f"{'--resume' if resume else '--executor slurm'} needs --json OUT: work is kept beside it"
        )
    if options["warm_jobs"] and options["start"] == "idle":
        raise click.UsageError("--warm-jobs: an idle start has no jobs before the window; add --start warm")
    slurm = slurm_options(options)
    with usage():
        settings, shape = from_options(options), None
        chosen = executors.chosen(executor, processes(executor, workers), path, slurm)
    _remark_on_placement(settings)
    if reached is not None:
        settings, shape = site.of_slurm(settings, reached, SystemClock().time())
    if resume and path is not None and not state_path(path).exists():
        remark(f"nothing to resume beside {path}: beginning anew")
    with progress_bar() as progress:
        evaluation = prepare(settings, revision(), progress, shape)
        return run_all(evaluation, chosen, path, resume=resume, progress=progress)
