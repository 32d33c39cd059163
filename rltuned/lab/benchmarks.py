"""``rltuned bench``: how fast each stage of the daemon is on this machine.

The queue is synthetic and the same for a given seed. Figures are the times of single calls: p50 and p99 over the
repeats. No Slurm is asked: `cycle_10000` parses answers of the size and form that 24.11 gives.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.config import DEFAULT_MODEL, Config
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.pools import job_pools
from rltuned.core.safe_files import encode
from rltuned.core.tables import JobTable, NodeTable, Partition, Snapshot
from rltuned.decide.decision import record
from rltuned.decide.place.placing import place
from rltuned.decide.place.problem import build
from rltuned.decide.plan import plan
from rltuned.decide.rank.protocol import Policy
from rltuned.decide.see.observation import STATE_COLUMNS, WINDOW, observe
from rltuned.decide.see.supply import pool_stats
from rltuned.records.model_files import load
from rltuned.slurm.commands import JOB_FIELDS, REGISTRY, SEPARATOR, SITE_FIELDS
from rltuned.slurm.process import Answer, Runner
from rltuned.slurm.snapshot import read_snapshot

NOW: Final = 1_800_000_000.0
_TYPES: Final = ("k80", "m40", "p100", "v100")


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


def queue(pending: int, nodes: NodeTable, seed: int) -> JobTable:
    """`pending` pending jobs of mixed shape, and running ones on the first 200 nodes that have GPUs taken."""
    rng = np.random.default_rng(seed + 1)
    busy = np.flatnonzero(nodes.gpus_alloc.sum(axis=1))[:200]
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
    partitions = tuple(Partition(name, every, True, 1, OverSubscribe.NO, 1, 6e5) for name in ("gpu", "share"))
    return Snapshot(NOW, (24, 11), queue(pending, table, seed), table, partitions)


class Canned(Runner):
    """A runner that gives prepared answers: everything of a read but Slurm itself."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(Path("/nonexistent"))
        self._answers = answers

    def run(self, name: str, *words: str, stdin: str = "") -> Answer:
        """The prepared answer of command `name`."""
        del words, stdin
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
            "Dependency": "(",  # of "(null)", one character is asked for
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


def times(call: Callable[[], object], repeats: int) -> dict[str, float]:
    """p50 and p99 of single calls in milliseconds, after two that do not count."""
    call()
    call()
    taken = np.empty(repeats)
    for repeat in range(repeats):
        start = time.perf_counter_ns()
        call()
        taken[repeat] = (time.perf_counter_ns() - start) / 1e6
    return {f"p{share}": round(float(np.percentile(taken, share)), 4) for share in (50, 99)}


def ranking(pending: int, nodes: int, seed: int, repeats: int) -> dict[str, float]:
    """Times of window, features and actor. What the pools offer counts only where the window has to be chosen."""
    snap, policy = snapshot(pending, nodes, seed), load(DEFAULT_MODEL)
    estimates, pools = np.full(len(snap.jobs), np.nan), job_pools(snap, snap.jobs.pending)
    stats = pool_stats(snap, pools, estimates) if pending <= WINDOW else None
    seen = partial(observe, snap, snap.jobs.pending, estimates, pools=pools, stats=stats, named=STATE_COLUMNS)
    return times(lambda: policy.score(seen()), repeats)


def rss_mb(pending: int, seed: int) -> float:
    """Resident memory, MiB, of a process of its own that has run whole cycles on `pending` jobs."""
    code = (
        "import sys\n"
        "from rltuned.controller.cycle import service\n"
        "from rltuned.lab import benchmarks as bench\n"
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
        "from rltuned.controller.cycle import service; from rltuned.records import model_files; "
        "from rltuned.core.config import DEFAULT_MODEL; model_files.load(DEFAULT_MODEL)"
    )
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def whole_cycle(runner: Runner, policy: Policy) -> bytes:
    """Parse, plan, diff and the decision record: all of a cycle but Slurm and the disk."""
    return encode(record(plan(read_snapshot(runner, NOW), policy, Config())))


def run(repeats: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """All figures, as ``bench --json`` prints them."""
    result: dict[str, Any] = {}
    for pending, nodes, loops in ((256, 36, repeats), (10_000, 500, max(repeats // 4, 5))):
        progress(f"ranking {pending} jobs")
        result[f"rank_{pending}_ms"] = ranking(pending, nodes, seed, loops)
    for jobs, nodes in ((16, 36), (256, 500)):
        progress(f"placing {jobs} jobs on {nodes} nodes")
        snap = snapshot(jobs, nodes, seed)
        problem = build(snap, snap.jobs.pending, job_pools(snap, snap.jobs.pending))
        result[f"milp_{jobs}x{nodes}_ms"] = times(partial(place, problem), max(repeats // 4, 5))
    progress("whole cycle, 10,000 pending")
    runner, policy = Canned(answers(snapshot(10_000, 500, seed))), load(DEFAULT_MODEL)
    result["cycle_10000_ms"] = times(partial(whole_cycle, runner, policy), max(repeats // 10, 5))
    progress("memory and start")
    return result | {"rss_mb_10000": round(rss_mb(10_000, seed), 1), "start_s": round(start_seconds(5), 3)}
