"""``rltuned bench``: how fast each stage is on this machine, each beside a simpler way of doing it, in one run.

The queue is synthetic and the same for a given seed, or (`of_queue`) a cluster's own as it was just read. Figures are
the times of single calls: p50 and p99 over the repeats. Only `of_live_queue` asks a real Slurm; `cycle_10000` parses
answers of the size and form that 24.11 gives.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rltuned.cluster.build import job_table, node_table
from rltuned.cluster.changes import OverSubscribe
from rltuned.cluster.pools import Pools, job_pools
from rltuned.cluster.tables import JobState, JobTable, NodeTable, Partition, Snapshot
from rltuned.config import DEFAULT_MODEL, Config, PlacementSection
from rltuned.daemon.clock import SystemClock
from rltuned.daemon.loop import load_policy
from rltuned.daemon.verdict import chosen
from rltuned.decide import plan, record
from rltuned.errors import RltunedError
from rltuned.observe import WINDOW, PoolStats, observe, pool_stats
from rltuned.placement import PlacementProblem, build, greedy, place
from rltuned.policy.base import Policy
from rltuned.policy.files import load
from rltuned.slurm import parse
from rltuned.slurm.commands import JOB_FIELDS, REGISTRY, SEPARATOR, SITE_FIELDS
from rltuned.slurm.connect import open_reader
from rltuned.slurm.process import Answer, Runner
from rltuned.slurm.snapshot import read_snapshot
from rltuned.workload.predict import RunTimeHistory, distinct_kinds, kinds_of, predict_table

NOW: Final = 1_800_000_000.0
_TYPES: Final = ("k80", "m40", "p100", "v100")


@dataclass(frozen=True, slots=True)
class Measure:
    """One stage. Milliseconds."""

    key: str
    what: str
    p50: float
    p99: float
    simpler: str = ""
    simpler_p50: float | None = None
    note: str = ""


def cluster(nodes: int, seed: int) -> NodeTable:
    """`nodes` nodes of 1 to 8 GPUs of four types, about 70 % of the GPUs taken."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, len(_TYPES), nodes)
    gpus = np.zeros((nodes, len(_TYPES)), dtype=np.int32)
    gpus[np.arange(nodes), kind] = np.array([2, 1, 4, 8])[kind]
    taken = np.minimum((gpus * rng.choice([0.0, 0.5, 1.0], (nodes, 1), p=[0.2, 0.2, 0.6])).astype(np.int32), gpus)
    return node_table(
        [f"node{k:04d}" for k in range(nodes)],
        _TYPES,
        gpus,
        gpus_alloc=taken,
        cpus=64,
        cpus_alloc=taken.sum(axis=1) * 4,
        mem=512_000.0,
        mem_alloc=taken.sum(axis=1) * 32_000.0,
        features=[frozenset({_TYPES[k], "gpu"}) for k in kind],
    )


def queue(pending: int, nodes: NodeTable, seed: int, releases: int = 200) -> JobTable:
    """`pending` pending jobs of mixed shape, and running ones on every node that has GPUs taken."""
    rng = np.random.default_rng(seed + 1)
    busy = np.flatnonzero(nodes.gpus_alloc.sum(axis=1))[:releases]
    n = pending + len(busy)
    is_pending = np.arange(n) < pending
    gpus = rng.choice([0, 1, 1, 1, 2, 4, 8, 16], n)
    gpus[~is_pending] = nodes.gpus_alloc.sum(axis=1)[busy]
    wide = np.where(gpus > 8, 2, 1)
    limit = rng.choice([600.0, 3600.0, 7200.0, 14_400.0, 86_400.0, 604_800.0], n)
    submit = NOW - rng.integers(60, 5 * 86_400, n)
    start = NOW - rng.uniform(0, 1, n) * limit
    return job_table(
        n,
        held_nodes=[[] if free else [int(busy[row - pending])] for row, free in enumerate(is_pending)],
        job_id=np.arange(n) + 1000,
        state=np.where(is_pending, JobState.PENDING, JobState.RUNNING),
        user=[f"user{k}" for k in rng.integers(0, 200, n)],
        account=[f"acct{k}" for k in rng.integers(0, 40, n)],
        partition=[("gpu", "share", "gpu,share")[k] for k in rng.integers(0, 3, n)],
        qos=[("normal", "high")[k] for k in (rng.random(n) < 0.1).astype(int)],
        gpu_type=[(*_TYPES, "", "", "")[k] if g else "" for k, g in zip(rng.integers(0, 7, n), gpus, strict=True)],
        submit_time=submit,
        eligible_time=submit,
        start_time=np.where(is_pending, np.nan, start),
        end_time=np.where(is_pending, np.nan, start + limit),
        time_limit=limit,
        nodes=np.where(is_pending, wide, 1),
        gpus=gpus,
        gpus_per_node=np.where(is_pending, gpus // wide, gpus),
        cpus=np.maximum(gpus * 4, 2),
        mem=np.maximum(gpus, 1) * 16_000.0,
        priority=rng.integers(1, 40_000, n),
    )


def snapshot(pending: int, nodes: int, seed: int) -> Snapshot:
    """A synthetic reading."""
    table = cluster(nodes, seed)
    every = np.arange(nodes, dtype=np.int32)
    partitions = tuple(
        Partition(
            name, every, up=True, priority_tier=1, oversubscribe=OverSubscribe.NO, oversubscribe_count=1, max_time=6e5
        )
        for name in ("gpu", "share")
    )
    return Snapshot(NOW, (24, 11), queue(pending, table, seed), table, partitions)


class Canned(Runner):
    """A runner that gives prepared answers: everything of a read but Slurm itself."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(Path("/nonexistent"))
        self._answers = answers

    def run(self, name: str, argument: str | None = None, stdin: str = "", second: str | None = None) -> Answer:
        """The prepared answer of command `name`."""
        del argument, stdin, second
        return Answer(REGISTRY[name], self._answers[name], "", 0, 0.0)


def answers(snap: Snapshot) -> dict[str, str]:
    """What squeue, sprio, scontrol and sdiag of 24.11 would print for this snapshot."""
    jobs, nodes = snap.jobs, snap.nodes
    lines = []
    for row in range(len(jobs)):
        waits = jobs.state[row] == JobState.PENDING
        kind = jobs.gpu_type.value(row)
        tres = f"cpu={jobs.cpus[row]},mem={jobs.mem[row]:.0f}M,node={jobs.nodes[row]},billing=1"
        if jobs.gpus[row]:
            tres += f",gres/gpu={jobs.gpus[row]}" + (f",gres/gpu:{kind}={jobs.gpus[row]}" if kind else "")
        values = {
            "JobID": jobs.job_id[row],
            "ArrayJobID": jobs.job_id[row],
            "UserName": jobs.user.value(row),
            "Account": jobs.account.value(row),
            "Partition": jobs.partition.value(row),
            "QOS": jobs.qos.value(row),
            "StateCompact": "PD" if waits else "R",
            "Reason": "Priority" if waits else "None",
            "SubmitTime": int(jobs.submit_time[row]),
            "EligibleTime": int(jobs.eligible_time[row]),
            "StartTime": "N/A" if waits else int(jobs.start_time[row]),
            "EndTime": "N/A" if waits else int(jobs.end_time[row]),
            "TimeLimit": f"{int(jobs.time_limit[row]) // 60}:00",
            "NumNodes": jobs.nodes[row],
            "NumTasks": 1,
            "NumCPUs": jobs.cpus[row],
            "MinMemory": f"{jobs.mem[row]:.0f}M",
            "MinTmpDisk": 0,
            "tres-alloc": tres,
            "tres-per-node": f"gres/gpu:{jobs.gpus_per_node[row]}" if jobs.gpus[row] else "N/A",
            "NodeList": "" if waits else ",".join(nodes.names[node] for node in jobs.nodes_of(row)),
            "HetJobID": 0,
            "PriorityLong": jobs.priority[row],
            "Nice": 0,
            "OverSubscribe": "OK",
        }
        lines.append("".join(f"{values.get(field, 'N/A')}{SEPARATOR}" for field in JOB_FIELDS))
    pending = [int(job) for job in jobs.job_id[jobs.pending]]
    terms = ["cpu=10" if field == "%T" else "0" if field == "%S" else "100" for field in SITE_FIELDS[1:]]
    each = []
    for row, name in enumerate(nodes.names):
        gres = ",".join(f"gpu:{t}:{nodes.gpus[row, c]}" for c, t in enumerate(nodes.gpu_types) if nodes.gpus[row, c])
        used = ",".join(
            f"gpu:{t}:{nodes.gpus_alloc[row, c]}(IDX:N/A)" for c, t in enumerate(nodes.gpu_types) if nodes.gpus[row, c]
        )
        each.append(
            f"NodeName={name} CoresPerSocket=32 CPUAlloc={nodes.cpus_alloc[row]} CPUEfctv={nodes.cpus[row]} "
            f"CPUTot={nodes.cpus[row]} AvailableFeatures=gpu ActiveFeatures={','.join(sorted(nodes.features[row]))} "
            f"Gres={gres} GresUsed={used} RealMemory={nodes.mem[row]:.0f} AllocMem={nodes.mem_alloc[row]:.0f} "
            f"State={'MIXED' if nodes.cpus_alloc[row] else 'IDLE'} TmpDisk=0 Partitions=gpu,share "
            f"CfgTRES=cpu=64 AllocTRES=cpu={nodes.cpus_alloc[row]}"
        )
    return {
        "version": "slurm-wlm 24.11.5\n",
        "jobs": "".join(line + "\n" for line in lines),
        "excluded": "".join(f"{job}{SEPARATOR}{job}{SEPARATOR}N/A{SEPARATOR}{SEPARATOR}\n" for job in jobs.job_id),
        "site-factors": "".join(SEPARATOR.join((str(job), *terms)) + SEPARATOR + "\n" for job in pending),
        "nodes": "".join(line + "\n" for line in each),
        "partitions": "".join(
            f"PartitionName={part.name} MaxNodes=UNLIMITED MaxTime=7-00:00:00 Nodes={','.join(nodes.names)} "
            "PriorityTier=1 OverSubscribe=NO State=UP\n"
            for part in snap.partitions
        ),
        "diagnostics": f"Server thread count:  3\nAgent queue size:     0\nJobs pending:   {len(pending)}\n",
    }


def times(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """p50 and p99 of single calls in milliseconds, after two that do not count."""
    call()
    call()
    taken = np.empty(repeats)
    for repeat in range(repeats):
        start = time.perf_counter_ns()
        call()
        taken[repeat] = (time.perf_counter_ns() - start) / 1e6
    return float(np.percentile(taken, 50)), float(np.percentile(taken, 99))


def rank(snap: Snapshot, policy: Policy, pools: Pools, stats: PoolStats | None = None) -> Any:
    """Window, features and actor: what `rank_*` measures.

    The pools of capable nodes are the cycle's: scope and placement need them whoever ranks. What the pools offer is
    computed once per snapshot, and measured as `supply_256_ms`; when the window has to be chosen it is part of this.
    """
    estimates = np.full(len(snap.jobs), np.nan)
    return policy.score(observe(snap, snap.jobs.pending, estimates, pools=pools, stats=stats))


def ranking(key: str, what: str, snap: Snapshot, policy: Policy, repeats: int) -> Measure:
    """`rank` beside `rank_one_by_one`."""
    pools = job_pools(snap, snap.jobs.pending)
    few = len(snap.jobs.pending) <= WINDOW
    stats = pool_stats(snap, pools, np.full(len(snap.jobs), np.nan)) if few else None
    p50, p99 = times(partial(rank, snap, policy, pools, stats), repeats)
    simple, _ = times(partial(rank_one_by_one, snap, policy), 3)
    return Measure(key, what, p50, p99, "job by job", simple)


def of_queue(snap: Snapshot, policy: Policy, repeats: int) -> tuple[list[Measure], dict[str, Any]]:
    """How long the pending jobs of this cluster take to be ranked, and the object of ``bench queue --json``."""
    pending = len(snap.jobs.pending)
    what = f"features and policy, {pending} pending on {len(snap.nodes)} nodes"
    measure = ranking("rank_queue_ms", what, snap, policy, repeats)
    result = {"pending": pending, "nodes": len(snap.nodes), "policy": policy.name}
    return [measure], result | result_of([measure])


def of_live_queue(config: Config, repeats: int) -> tuple[list[Measure], dict[str, Any]]:
    """`of_queue` for this cluster as it is now, and the policy that the daemon would use. Reads Slurm, writes nothing.

    Raises:
        RltunedError: no job is pending, or Slurm or the model cannot be read.
    """
    snap = open_reader(config.slurm).snapshot(SystemClock().time())
    if len(snap.jobs.pending) == 0:
        raise RltunedError(
            "bench queue: no job is pending on this cluster, so there is nothing to rank; "
            "`rltuned bench` makes a queue of its own"
        )
    policy, _ = chosen(load_policy(config.policy), snap, config.rollout)
    return of_queue(snap, policy, repeats)


def result_of(measures: Sequence[Measure]) -> dict[str, Any]:
    """For machines."""
    result: dict[str, Any] = {item.key: {"p50": round(item.p50, 4), "p99": round(item.p99, 4)} for item in measures}
    return result | {"simpler": {item.key: {"way": item.simpler, "p50": item.simpler_p50} for item in measures}}


def rank_one_by_one(snap: Snapshot, policy: Policy) -> Any:
    """The simpler way: observe and score each job of the window by itself."""
    estimates = np.full(len(snap.jobs), np.nan)
    rows = observe(snap, snap.jobs.pending, estimates).rows
    return [policy.score(observe(snap, rows[k : k + 1], estimates)) for k in range(len(rows))]


def read_row_by_row(text: str) -> list[dict[str, Any]]:
    """The simpler way to read a queue: each field of each job by itself, instead of each distinct text of a column."""
    jobs = []
    for line in text.splitlines():
        job: dict[str, Any] = dict(zip(JOB_FIELDS, line.split(SEPARATOR), strict=False))
        job["TimeLimit"] = parse.duration(job["TimeLimit"])
        for field in ("SubmitTime", "EligibleTime", "StartTime", "EndTime"):
            job[field] = parse.epoch(job[field])
        for field in ("NumNodes", "NumTasks", "NumCPUs"):
            job[field] = parse.count(job[field])
        for field in ("PriorityLong", "Nice", "JobID"):
            job[field] = parse.integer(job[field])
        job["tres-alloc"] = parse.tres(job["tres-alloc"])
        job["tres-per-node"] = parse.gres(job["tres-per-node"])
        jobs.append(job)
    return jobs


def finished(snap: Snapshot, seed: int, jobs: int = 20_000) -> RunTimeHistory:
    """What is known of run times when so many jobs like those of a queue have ended."""
    rng = np.random.default_rng(seed)
    kinds, history = kinds_of(snap.jobs, snap.jobs.time_limit), RunTimeHistory()
    for number, row in enumerate(rng.integers(0, len(kinds), jobs).tolist()):
        kind = replace(kinds[row], partition=kinds[row].partition.partition(",")[0])
        history.ended(kind, float(np.exp(rng.normal(7.0, 2.0))), NOW + 60.0 * number)
    history.renew()
    return history


def placement_problem(jobs: int, nodes: int, seed: int) -> PlacementProblem:
    """K jobs on M nodes, as the daemon builds it."""
    snap = snapshot(jobs, nodes, seed)
    rows = snap.jobs.pending
    return build(snap, rows, job_pools(snap, rows))


def rss_mb(pending: int, seed: int) -> float:
    """Resident memory, MiB, of a process of its own that has run whole cycles on `pending` jobs."""
    code = (
        "import sys\n"
        "from rltuned.daemon import service\n"
        "from rltuned import bench\n"
        f"snap = bench.snapshot({pending}, 500, {seed})\n"
        "runner, policy = bench.Canned(bench.answers(snap)), bench.load(bench.DEFAULT_MODEL)\n"
        "del snap\n"
        "for _ in range(3): bench.whole_cycle(runner, policy)\n"
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')][0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def start_seconds(repeats: int) -> float:
    """Median seconds from exec to a loaded configuration and model: what READY=1 waits for."""
    code = (
        "from rltuned.daemon import service; from rltuned.policy import files; "
        "from rltuned.config import DEFAULT_MODEL; files.load(DEFAULT_MODEL)"
    )
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def whole_cycle(runner: Runner, policy: Policy) -> str:
    """Parse, plan, diff and the decision record: all of a cycle but Slurm and the disk."""
    return json.dumps(record(plan(read_snapshot(runner, NOW), policy, Config())).to_json())


def run(repeats: int, seed: int, progress: Callable[[str], None]) -> tuple[list[Measure], dict[str, Any]]:
    """All measures, and the object of ``bench --json``."""
    measures: list[Measure] = []
    policy, settings = load(DEFAULT_MODEL), PlacementSection()
    for pending, loops in ((256, repeats), (10_000, max(repeats // 4, 5))):
        progress(f"ranking {pending} jobs")
        snap = snapshot(pending, 500 if pending > 256 else 36, seed)
        if pending <= WINDOW:
            pools, estimates = job_pools(snap, snap.jobs.pending), np.full(len(snap.jobs), np.nan)
            p50, p99 = times(partial(pool_stats, snap, pools, estimates), loops)
            measures.append(Measure(f"supply_{pending}_ms", f"supply of the pools, {pending} pending", p50, p99))
        what = f"features and actor, {pending} pending"
        measures.append(ranking(f"rank_{pending}_ms", what, snap, policy, loops))
    progress("run times of 10,000 jobs")
    history = finished(snap, seed)
    p50, p99 = times(partial(predict_table, history, snap.jobs), max(repeats // 10, 5))
    note = f"{len(distinct_kinds(snap.jobs)[1])} kinds of job"
    measures.append(Measure("predict_10000_ms", "run times, 10,000 pending", p50, p99, note=note))
    for jobs, nodes in ((16, 36), (256, 500)):
        progress(f"placing {jobs} jobs on {nodes} nodes")
        problem = placement_problem(jobs, nodes, seed)
        p50, p99 = times(partial(place, problem, settings), max(repeats // 4, 5))
        simple, _ = times(partial(greedy, problem), 5)
        best, fallback = place(problem, settings), greedy(problem)
        note = f"{best.outcome.value}, objective {best.objective:.4g} against {fallback.objective:.4g}"
        what = f"integer program, {jobs} jobs × {nodes} nodes"
        measures.append(Measure(f"milp_{jobs}x{nodes}_ms", what, p50, p99, "greedy best fit", simple, note))
    progress("whole cycle, 10,000 pending")
    snap = snapshot(10_000, 500, seed)
    runner = Canned(answers(snap))
    p50, p99 = times(lambda: whole_cycle(runner, policy), max(repeats // 10, 5))
    text = runner.run("jobs").stdout
    simple, _ = times(partial(read_row_by_row, text), 3)
    note = "the other column only reads the queue, no plan"
    what = "whole cycle but Slurm, 10,000 pending"
    measures.append(Measure("cycle_10000_ms", what, p50, p99, "parse row by row", simple, note))
    progress("memory and start")
    result = result_of(measures)
    result["rss_mb_10000"] = round(rss_mb(10_000, seed), 1)
    result["start_s"] = round(start_seconds(5), 3)
    return measures, result
