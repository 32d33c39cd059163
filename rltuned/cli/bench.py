"""`rltuned bench`: speed on this machine."""

import click

from rltuned.cli.common import console, emit, json_option

STAGES = {
    "rank_256_ms": "features and actor, 256 pending",
    "rank_10000_ms": "features and actor, 10,000 pending",
    "milp_16x36_ms": "integer program, 16 jobs × 36 nodes",
    "milp_256x500_ms": "integer program, 256 jobs × 500 nodes",
    "cycle_10000_ms": "whole cycle but Slurm, 10,000 pending",
}


@click.command()
@click.option("--repeats", default=200, show_default=True, type=click.IntRange(min=5), help="Calls per stage.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(min=0), help="Of the synthetic queue.")
@json_option
def bench(repeats: int, seed: int, *, as_json: bool) -> None:
    """Speed of the daemon's stages on this machine. The queue is synthetic; Slurm is not asked."""
    from rltuned.core.wording import table
    from rltuned.lab import benchmarks as benchmark

    with console(stderr=True).status("") as status:
        result = benchmark.run(repeats, seed, status.update)
    if as_json:
        emit(result)
        return
    columns = ("stage", "p50 ms", "p99 ms")
    rows = [(what, *(f"{result[key][share]:.3g}" for share in ("p50", "p99"))) for key, what in STAGES.items()]
    console().print(table("", columns, rows, right=columns[1:]))
    click.echo(
        f"resident memory with 10,000 pending jobs: {result['rss_mb_10000']} MiB; ready after {result['start_s']} s"
    )
