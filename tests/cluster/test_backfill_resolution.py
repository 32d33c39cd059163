"""bf_resolution: real Slurm reserves nodes for whole steps, as the simulator does."""

import time

import pytest
from cluster.support import OLD_AND_NEW, Cluster, wait_until

from rltuned.core.scheduler import SchedulerParameters
from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.values import SimulationSettings
from rltuned.simulate.workload.jobs import Estimates, Source, workload

JOBS = {"running": (1, 4, 5), "head": (2, 8, 2), "short": (1, 1, 1), "long": (1, 1, 30)}
"""Nodes, GPUs and minutes of each job, in order of priority, on two nodes of four GPUs."""
FINE = 1
LEFT = 600
"""Seconds of a step that are left when the test begins: longer than the plans of these jobs, but for the last."""


def simulated(resolution: int, window: int = 60) -> set[str]:
    """Jobs that start before the first one ends. `window`: minutes."""
    nodes, gpus, minutes = zip(*JOBS.values(), strict=True)
    limit = [60.0 * each for each in minutes]
    jobs = workload(Source("by hand"), [0.0, 1.0, 2.0, 3.0], limit, gpus, nodes=nodes)
    parameters = {"bf_interval": "1", "bf_resolution": str(resolution), "bf_window": str(window)}
    settings = SimulationSettings.of_cluster(SchedulerParameters.read(parameters))
    simulation = Simulation(parse_shape("2x4"), jobs, Estimates(jobs.run_time, jobs.run_time.copy()), settings)
    simulation.run(RuleRanker(by_name("fifo")))
    start = simulation.result().start
    return {name for name, at in zip(JOBS, start, strict=True) if at < limit[0]}


def started(cluster: Cluster, ids: list[int]) -> set[str]:
    """Jobs that run after backfill has looked at all of them a few times."""
    cluster.reset_rpc_counts()
    wait_until(lambda: cluster.backfill_passes() >= 3, "three passes of backfill")
    states = cluster.states()
    return {name for name, job in zip(JOBS, ids, strict=True) if states.get(job) != "PENDING"}


def submit(cluster: Cluster) -> list[int]:
    """Waits until the first one runs."""
    rows = [
        (
            *("alice", f"-N{nodes}", f"--gres=gpu:p100:{gpus // nodes}", "--mem=100"),
            *("-t", str(minutes), f"--nice={1_000_000 * place}"),
        )
        for place, (nodes, gpus, minutes) in enumerate(JOBS.values())
    ]
    ids = cluster.submit_many(rows)
    cluster.wait_state(ids[0], "RUNNING")
    return ids


def changed(cluster: Cluster, **parameters: int) -> dict[str, str]:
    """For `Cluster.conf`."""
    return cluster.scheduler_parameters(
        remove=list(parameters), add=[f"{name}={value}" for name, value in parameters.items()]
    )


# 24.11 and 26.05 plan alike.
both = pytest.mark.parametrize("cluster", OLD_AND_NEW, indirect=True)


def long_step() -> int:
    """Seconds: a step that does not end soon."""
    return next(step for step in range(3600, 1800, -1) if time.time() % step < step - LEFT)


@both
def test_a_job_shorter_than_bf_resolution_reserves_its_nodes_for_a_whole_step(cluster: Cluster):
    coarse = long_step()
    with cluster.conf(changed(cluster, bf_resolution=coarse)):
        ids = submit(cluster)
        # Nobody may have the second node, not even who would be gone before the head comes.
        assert started(cluster, ids) == simulated(coarse) == {"running"}
    assert started(cluster, ids) == simulated(FINE) == {"running", "short"}


@both
def test_backfill_starts_nothing_while_bf_window_ends_before_the_next_step(cluster: Cluster):
    # The head comes too late to be planned.
    coarse = long_step()
    with cluster.conf(changed(cluster, bf_resolution=coarse, bf_window=1)):
        ids = submit(cluster)
        # Before 23.11.2 it started jobs as if nobody had planned anything. The simulator does as the newer ones.
        old = cluster.release == "22.05"
        assert simulated(coarse, window=1) == {"running"}
        assert started(cluster, ids) == ({"running", "short", "long"} if old else {"running"})
    with cluster.conf(changed(cluster, bf_window=1)):
        assert started(cluster, ids) == simulated(FINE, window=1) == {"running", "short", "long"}
