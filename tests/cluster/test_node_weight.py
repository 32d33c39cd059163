"""Weight of nodes: real Slurm chooses as the simulator does."""

from cluster.support import NODES, Cluster

from rltuned.decide.rank.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.shape import from_json
from rltuned.simulate.workload.jobs import Estimates, Source, workload

WEIGHTS = {"k80-1": 9, "k80-2": 9, "m40-1": 5, "p100-1": 1, "p100-2": 9}
POOL = {"k80": {"gpus_per_node": 2, "cpus": 28}, "m40": {"gpus_per_node": 1, "cpus": 28}, "p100": {"gpus_per_node": 4}}
JOBS = (1, 2, 3)
"""Nodes of each job, of one GPU and one CPU on each."""


def simulated() -> list[set[str]]:
    pools = [
        {"nodes": 1, "cpus": 56, "gpu_type": name[:-2], "weight": WEIGHTS[name], **POOL[name[:-2]]} for name in NODES
    ]
    n = len(JOBS)
    jobs = workload(Source("by hand"), [0.0, 1.0, 2.0], [100.0] * n, list(JOBS), nodes=list(JOBS), cpus=list(JOBS))
    simulation = Simulation(
        from_json({"pools": pools}, "the testbed"), jobs, Estimates(jobs.run_time, jobs.run_time.copy())
    )
    simulation.run(RuleRanker(by_name("fifo")))
    return [{NODES[node] for node in simulation.nodes_of(row)} for row in range(n)]


def test_nodes_of_the_smallest_weight_are_taken_first_and_a_job_of_several_takes_the_next_ones_too(cluster: Cluster):
    def weigh(weights: dict[str, int]) -> None:
        cluster.sh("\n".join(f"scontrol update NodeName={name} Weight={value}" for name, value in weights.items()))

    weigh(WEIGHTS)
    try:
        chosen = []
        for nodes in JOBS:
            job = cluster.submit("alice", f"-N{nodes}", "--gres=gpu:1", "--mem=100", "-t", "10")
            cluster.wait_state(job, "RUNNING")
            text = cluster.run(["scontrol", "show", "hostnames", cluster.job(job)["NodeList"]]).stdout
            chosen.append(set(text.split()))
    finally:
        weigh(dict.fromkeys(NODES, 1))
    assert chosen == simulated() == [{"p100-1"}, {"p100-1", "m40-1"}, {"p100-1", "k80-1", "k80-2"}]
