"""`rltuned traces`: look at job traces, and make some."""

from pathlib import Path

import click

from rltuned.cli.common import FILE, console, emit, json_option


@click.group()
def traces() -> None:
    """Look at job traces, and make some.

    A trace is one job per line with its submission, run time and GPUs: CSV, or as sacct prints it (docs/evaluation.md).
    The least that CSV needs:

    \b
      submit_time,num_gpus,run_time
      0,1,600
      30,8,7200
    """


@traces.command("describe")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be read and go on.")
@json_option
def traces_describe(file: Path, *, skip_bad: bool, as_json: bool) -> None:
    """Statistics of a trace: jobs, waits, run times, GPUs, demand.

    FILE may be packed with gzip or come from a pipe. Demand is the number of GPUs that the jobs would keep busy if none
    had to wait: compare it with the cluster. A line that cannot be read ends the command with FILE:LINE and the reason
    (exit code 11).

    \b
    Examples:
      rltuned traces describe jobs.csv.gz --json
      TZ=UTC sacct -aDPX -S 2026-01-01 -o $FIELDS | rltuned traces describe /dev/stdin
    docs/evaluation.md has the FIELDS.
    """
    from rltuned.cli import show
    from rltuned.core.workers.progress import progress_bar
    from rltuned.simulate.workload.describe import describe
    from rltuned.simulate.workload.readers import read

    with progress_bar() as report:
        described = describe(read(file, skip_bad=skip_bad, progress=report, keep_unknown=True))
    if as_json:
        emit(described)
    else:
        show.workload(console(), described)


@traces.command("generate")
@click.argument("preset", metavar="PRESET")
@click.option("--jobs", default=1024, show_default=True, type=click.IntRange(1, 10_000_000), help="How many.")
@click.option("--cluster", required=True, help="20x8:p100 (nodes x GPUs : type), several with commas, or FILE.json.")
@click.option(
    "--seed", default=7, show_default=True, type=click.IntRange(min=0), help="The same seed gives the same jobs."
)
@click.option("--load", default=1.0, show_default=True, help="Demand over the cluster's GPUs; above 1 the queue grows.")
@click.option("--out", required=True, type=FILE, help="FILE.csv or FILE.csv.gz.")
def traces_generate(preset: str, jobs: int, cluster: str, seed: int, load: float, out: Path) -> None:
    """Make jobs like those of a published trace, for a cluster.

    PRESET is philly, helios or pai: their run times, GPUs and bursts, with users who have habits and write time limits
    as people do (docs/evaluation.md says what was counted where). No trace is needed. `rltuned evaluate --trace` and
    `rltuned traces describe` take the file.

    \b
    Examples:
      rltuned traces generate philly --jobs 2000 --cluster 20x8:p100 --load 0.9 --out jobs.csv.gz
      rltuned traces generate pai --jobs 500 --cluster 4x8:a100:128c:1024g,16x2:p100 --out jobs.csv
    """
    from rltuned.simulate.shape import read_shape
    from rltuned.simulate.workload.synthetic import generate
    from rltuned.simulate.workload.write import write_csv

    made = generate(preset, jobs, read_shape(cluster), seed, load)
    write_csv(made, out)
    click.echo(f"{out}: {len(made)} jobs over {made.submit_time[-1] / 86400:.2f} days")
