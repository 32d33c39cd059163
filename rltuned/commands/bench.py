"""`rltuned bench`: speed on this machine."""

from pathlib import Path
from typing import Any

import click

from rltuned.commands.common import config_option, console, emit, json_option, load


@click.command()
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

    Without an argument: the stages of the daemon, and the simulator where the extra [simulate] is installed. With
    "simulate": the simulator alone, jobs per second on one core beside the plain-Python loop that the compiled one
    replaces: five times REPEATS windows of 256 jobs, then 10,000 jobs of which thousands queue. Compiling, once for an
        installation, is stated
    apart. With "queue": how long the pending jobs of this cluster, as they are now, take to be ranked by the policy
    that the daemon would use; it reads Slurm and writes nothing. With "scale": whole cycles of an active daemon beside
    a queue of JOBS on NODES, a cycle for each twenty REPEATS, and how their time grows: Slurm's programs are stand-ins,
    all else is real.
    """
    from importlib.util import find_spec

    from rltuned import bench as benchmark
    from rltuned import show
    from rltuned.installed import missing

    if what == "queue":
        of_queue, told = benchmark.of_live_queue(load(config_path).config, repeats)
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
        raise missing("numba", f"bench {what}")
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
