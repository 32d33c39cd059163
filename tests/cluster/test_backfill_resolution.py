"""bf_resolution: real Slurm reserves nodes for whole steps, as the simulator does."""

import time

from cluster.support import Cluster, wait_until

from rltuned.cluster.shape import parse_shape
from rltuned.policy.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.values import SimulationSettings
from rltuned.workload.jobs import Estimates, Source, workload

JOBS = {"running": (1, 4, 5), "head": (2, 8, 2), "short": (1, 1, 1), "long": (1, 1, 30)}
"""Nodes, GPUs and minutes of each job, in order of priority, on two nodes of four GPUs."""
FINE = 1
LEFT = 600
"""Seconds of a step that are left when the test begins: longer than the plans of these jobs, but for the last."""


def simulated(resolution: int) -> set[str]:
    """Jobs that start before the first one ends."""
    nodes, gpus, minutes = zip(*JOBS.values(), strict=True)
    limit = [60.0 * each for each in minutes]
    jobs = workload(Source("by hand"), [0.0, 1.0, 2.0, 3.0], limit, gpus, nodes=nodes)
    settings = SimulationSettings.of_parameters(f"bf_interval=1,bf_resolution={resolution}")
    simulation = Simulation(parse_shape("2x4"), jobs, Estimates(jobs.run_time, jobs.run_time.copy()), settings)
    simulation.run(RuleRanker(by_name("fifo")))
    start = simulation.result().start
    return {name for name, at in zip(JOBS, start, strict=True) if at < limit[0]}


def started(cluster: Cluster, ids: list[int]) -> set[str]:
    """Jobs that run after backfill has looked at all of them a few times."""
    cluster.reset_rpc_counts()
    wait_until(lambda: cluster.backfill_passes() >= 3, "three passes of backfill")
    states = cluster.states()
    return {name for name, job in zip(JOBS, ids, strict=True) if states[job] == "RUNNING"}


def test_a_job_shorter_than_bf_resolution_reserves_its_nodes_for_a_whole_step(cluster: Cluster):
    coarse = next(step for step in range(3600, 1800, -1) if time.time() % step < step - LEFT)
    with cluster.conf(cluster.scheduler_parameters(remove=["bf_resolution"], add=[f"bf_resolution={coarse}"])):
        ids = cluster.submit_many(
            [
                (
                    *("alice", f"-N{nodes}", f"--gres=gpu:p100:{gpus // nodes}", "--mem=100"),
                    *("-t", str(minutes), f"--nice={1_000_000 * place}"),
                )
                for place, (nodes, gpus, minutes) in enumerate(JOBS.values())
            ]
        )
        cluster.wait_state(ids[0], "RUNNING")
        # Nobody may have the second node, not even who would be gone before the head comes.
        assert started(cluster, ids) == simulated(coarse) == {"running"}
    assert started(cluster, ids) == simulated(FINE) == {"running", "short"}
