"""Options that mean the same to several commands of the laboratory: each is declared once."""

from collections.abc import Callable
from typing import Any, Final

import click

from rltuned.cli.common import NUMBER, Real, config_option, removed
from rltuned.core.objective import Objective


def _objective(_context: click.Context, _option: click.Parameter, value: str | None) -> Objective | None:
    try:
        return None if value is None else Objective.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "trace": {"metavar": "FILE", "help": "Jobs of this file: CSV or sacct -P; gzip or not (`rltuned traces`)."},
    "from_sacct": {
        "type": Real(0, 366, min_open=True),
        "metavar": "DAYS",
        "help": "This site's own jobs of the last DAYS, from sacct.",
    },
    "cluster": {
        "metavar": "SHAPE",
        "help": "20x8:p100 (nodes x GPUs : type), several with commas, or FILE.json.",
        "usual": "with --from-sacct what Slurm shows",
    },
    "from_slurm": {
        "is_flag": True,
        "help": "Cluster, scheduler parameters and weights of the Slurm that is reached from here, instead of "
        "--cluster.",
    },
    "slurm": {
        "metavar": "KEY=VALUE,…",
        "help": "The simulated Slurm: backfill=easy|none (a reservation for the first job of a partition, or none at "
        "all), placement=best|worst (best fit, worst fit), and SchedulerParameters: bf_interval, bf_window, "
        "bf_resolution, bf_max_job_test, bf_max_job_user, bf_max_job_part, bf_max_job_start, bf_min_age_reserve, "
        "bf_job_part_count_reserve, default_queue_depth.",
        "usual": "what Slurm shows; with --cluster those of a slurm.conf that says nothing, but for "
        "default_queue_depth: the whole queue",
    },
    "split": {
        "type": click.Choice(["all", "train", "validation", "test"]),
        "help": "Part of the trace, by time: the first 70 % of the jobs, the next 15 %, the last 15 %.",
        "usual": "all",
    },
    "start": {
        "metavar": "idle|warm|real|warm:JOBS|real:JOBS",
        "help": "warm: the jobs before the window, as many as it has or JOBS, run and queue when it begins, by FIFO, "
        "the same for every policy. real: what really ran and waited then, where the trace says when jobs started.",
    },
    "seed": {
        "type": click.IntRange(min=0),
        "help": "Of all that is drawn: the same seed gives the same result.",
        "usual": "7",
    },
    "model": {"help": "Of rl: a name, or a manifest's path."},
    "estimates": {
        "help": "What policies know of run times: true, noisy:SIGMA, limit (the users' own) or history (a predictor).",
        "usual": "estimates.source",
    },
    "weights": {
        "metavar": "WEIGHTS",
        "help": "Slurm's own order: usual (all factors weigh alike), fair-share (it decides), or a list as "
        "age=1000,fairshare=100000,gres/gpu=500. rl raises jobs in it; reported are the accounts that are worse off "
        "than in it, and the jobs that are late.",
        "usual": "what Slurm shows; with --cluster usual",
    },
    "objective": {
        "metavar": "WEIGHTS",
        "callback": _objective,
        "help": "What J weighs, each over Slurm's own order (multifactor), and what the model is to want: mean wait, "
        "slowdown, 99th percentile of the wait, idle GPU time while jobs wait.",
        "usual": "the site's policy.objective",
    },
    "skip_bad": {"is_flag": True, "default": None, "help": "Count lines that cannot be read and go on."},
    "window": {"type": NUMBER, "help": "Jobs of a window."},
    "windows": {"type": NUMBER, "help": "How many windows."},
    "shares": {"metavar": "SHARE,SHARE…", "help": "lend.share to try.", "usual": "0,.05,.1,.2,.5,1"},
    "names": {
        "is_flag": True,
        "default": None,
        "help": "Say what run times predicted by what jobs are called would be worth: of a file with sacct's JobName "
        "and WorkDir, or read with --from-sacct and known as hashes only (docs/estimates.md).",
    },
    "valid_days": {"type": Real(1, 366), "help": "For how long the daemon goes by the verdict.", "usual": "90"},
    "workers": {"type": NUMBER, "help": "Processes.", "usual": "one per core, one beside slurmctld"},
}
"""As click takes them, but for `usual`: what stands where the option is not given, in words."""
_GONE: Final = {
    "slurm": {
        "--scheduler": "--slurm takes SchedulerParameters",
        "--backfill": "write --slurm backfill=easy|none",
        "--placement": "write --slurm placement=best|worst",
    },
    "start": {"--warm-jobs": "write --start warm:JOBS"},
}


def options(*names: str, several: bool = False, **usual: str) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: these options, in this order, and --config. `usual`: of this command, where that differs. `several`:
    traces and clusters, not one.
    """

    def add(command: Callable[..., Any]) -> Any:
        command = config_option(command)
        for name in reversed(names):
            how = {**_OPTIONS[name]}
            if default := usual.get(name, how.pop("usual", "")):
                how["help"] += f" [default: {default}]"
            if several and name in {"trace", "cluster"}:
                how |= {"multiple": True, "help": f"{how['help']} May be given again, a --cluster for each --trace."}
            command = click.option(f"--{name.replace('_', '-')}", **how)(command)
            for old, instead in _GONE.get(name, {}).items():
                command = removed(old, instead)(command)
        return command

    return add


def whose_jobs(options: dict[str, Any], days: float | None = None) -> None:
    """UsageError where options do not name whose jobs, on which cluster. `from_slurm` is taken out: it is what is meant
    where no cluster is named; `from_sacct` gets `days` where nothing is said.
    """
    trace, cluster, sacct = options["trace"], options["cluster"], options.get("from_sacct")
    from_slurm = options.pop("from_slurm", None)
    if cluster and from_slurm:
        raise click.UsageError("--cluster and --from-slurm both name a cluster")
    if not trace and sacct is None and days is not None:
        options["from_sacct"] = sacct = days
    if bool(trace) == (sacct is not None):
        raise click.UsageError("whose jobs? Either --from-sacct DAYS, or --trace FILE with --cluster SHAPE")
    if trace and not cluster and not from_slurm:
        needed = "--cluster" if from_slurm is None else "--cluster, or --from-slurm"
        raise click.UsageError(f"--trace needs {needed}: the file need not be of the cluster that is reached from here")
    if isinstance(cluster, tuple) and len(cluster) != len(trace) and (trace or len(cluster) > 1):
        raise click.UsageError(f"{len(trace)} traces and {len(cluster)} clusters: give one --cluster for each --trace")
