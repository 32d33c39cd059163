"""`testbed replay`: the same jobs as a workload, on a cluster of the testbed, with every time written down.

    docker-slurm-testbed/testbed replay [--jobs 200] [--seed 1] [--policy fifo] --out REPLAY.json
    docker-slurm-testbed/testbed replay --workload TRACE.csv.gz --jobs 200 --start 1000 --factor 360 --out REPLAY.json

Each job is a `sleep` for its run time divided by the factor. README.md says how the order is made and what is
measured.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from testbed import DEFAULT_PROJECT, USERS, Project, TestbedError, discover, say

from rltuned.core.errors import RltunedError
from rltuned.core.notation import expand
from rltuned.core.workers.progress import progress_bar
from rltuned.decide.rank import RULES, by_name
from rltuned.simulate.engine import QueueView
from rltuned.simulate.requests import requests
from rltuned.simulate.shape import ClusterShape, from_json
from rltuned.simulate.workload.jobs import Source, Workload, workload
from rltuned.simulate.workload.readers import read
from rltuned.simulate.workload.simulated_estimates import estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FORM: Final = 1
"""Version of REPLAY.json."""
MINUTE: Final = 60.0
LOG: Final = "/var/log/slurm/slurmctld.log"
CONF: Final = "/etc/slurm/slurm.conf"
HIGHEST: Final = 1_000_000
"""Weight of the QOS: what Slurm's own priority is made of in a replay, besides the nice value. normal is 50 of 100."""
LEAST_MEM: Final = 100.0
"""MiB on each node, where the workload gives no memory: `sbatch --mem=0` would mean all of it."""


# --- the jobs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A class of jobs of the built-in mixture, on the paper's cluster."""

    name: str
    weight: int
    gpus: int
    gpu_type: str = ""
    nodes: int = 1
    """0: so many GPUs in all, wherever (`--gpus`)."""
    cpus: int = 1
    mem: int = 1000
    """MiB on each node."""


KINDS: Final = (
    Kind("1 GPU of any type", 36, 1),
    Kind("1 or 2 P100", 20, 2, "p100"),
    Kind("2 K80", 12, 2, "k80"),
    Kind("1 P100, much memory", 10, 1, "p100", mem=120_000),
    Kind("several nodes", 7, 4, "p100", nodes=2),
    Kind("CPUs only", 12, 0, cpus=4),
    Kind("several nodes", 3, 6, "p100", nodes=0),
)
LIMITS: Final = (1, 2, 3, 5, 10)
"""Minutes, real ones."""


@dataclass(frozen=True)
class Jobs:
    """What is submitted; times in real seconds, the first job at 0."""

    workload: Workload
    """`time_limit` is filled in (whole minutes); CPUs and memory too, so that Slurm and the simulator count the
    same."""
    shown_to_policy: np.ndarray[Any, np.dtype[np.float64]]
    """(N,) r, the estimate that a rule ranks on, seconds."""
    kind: tuple[str, ...]
    """Class of each job, for the comparison."""
    left_out: dict[str, int]
    """Jobs of the file that this cluster could never run, by reason."""
    warm: int = 0
    """The first so many make the initial state of an A/B and are not measured."""


def mixture(jobs: int, seed: int, span: float, mean: float, users: int = len(USERS)) -> Jobs:
    """The built-in mixture: `jobs` jobs of so many users in `span` seconds, which run for `mean` seconds in the mean
    (2.5 to 15).
    """
    rng = np.random.default_rng(seed)
    weight = np.array([kind.weight for kind in KINDS], dtype=np.float64)
    # Shares of the classes that do not depend on luck, in an order that does.
    count = np.floor(weight / weight.sum() * jobs).astype(int)
    count[0] += jobs - count.sum()
    picked = [KINDS[at] for at in rng.permutation(np.repeat(np.arange(len(KINDS)), count))]
    at = np.sort(rng.uniform(0.0, span, jobs))
    at -= at[0]
    run_time = np.round(np.clip(rng.lognormal(math.log(mean) - 0.18, 0.6, jobs), 2.5, 15.0), 1)
    gpus = np.array([int(rng.integers(1, 3)) if kind.name == "1 or 2 P100" else kind.gpus for kind in picked])
    nodes = np.array([kind.nodes for kind in picked])
    spread = np.maximum(nodes, 1)
    made = workload(
        Source(name=f"testbed mixture, seed {seed}"),
        at,
        run_time,
        gpus,
        nodes=nodes,
        cpus=[kind.cpus if kind.nodes else kind.gpus for kind in picked] * spread,
        mem=np.array([kind.mem for kind in picked], dtype=np.float64) * spread,
        time_limit=rng.choice(LIMITS, jobs) * MINUTE,
        gpu_type=[kind.gpu_type for kind in picked],
        user=[USERS[at] for at in rng.integers(0, users, jobs)],
    )
    return Jobs(made, made.time_limit.copy(), tuple(kind.name for kind in picked), {})


def from_trace(jobs: Workload, shape: ClusterShape, how: str, seed: int, factor: float) -> Jobs:
    """A part of a trace, `factor` times as fast; limits become whole minutes, as Slurm keeps them."""
    if not len(jobs):
        message = f"{jobs.source.name} has no jobs at that place"
        raise TestbedError(message)
    estimates = estimate(jobs, how, seed)
    limit = np.maximum(np.ceil(np.minimum(estimates.time_limit, 7 * 86400.0 * factor) / factor / MINUTE), 1.0) * MINUTE
    known = {partition.name for partition in shape.partitions}
    partition = [jobs.partition.value(row) for row in range(len(jobs))]
    types = {name.lower() for name in shape.nodes.gpu_types}
    gpu_type = [jobs.gpu_type.value(row).lower() for row in range(len(jobs))]
    spread = np.maximum(jobs.nodes, 1)
    small = workload(
        jobs.source,
        (jobs.submit_time - jobs.submit_time[0]) / factor,
        # A job that would be killed ends by itself: slurmctld kills up to 30 s late.
        np.round(np.maximum(np.minimum(jobs.run_time, estimates.time_limit) / factor, 0.1), 2),
        jobs.gpus,
        nodes=jobs.nodes,
        cpus=np.maximum(jobs.cpus, np.maximum(jobs.gpus, spread)),
        mem=np.maximum(jobs.mem, LEAST_MEM * np.maximum(jobs.gpus, spread)),
        time_limit=limit,
        partition=[name if name in known else "" for name in partition],
        gpu_type=[name if name in types else "" for name in gpu_type],
        user=[USERS[code % len(USERS)] for code in jobs.user.codes],
        job_id=jobs.job_id,
        line=jobs.line,
    )
    never = requests(shape, small, limit).rejected
    kept = np.setdiff1d(np.arange(len(small)), list(never))
    left_out = dict(Counter(never.values()))
    if not len(kept):
        message = "none of these jobs fits the cluster: " + "; ".join(left_out)
        raise TestbedError(message)
    small = small.take(kept)
    shown = np.clip(estimates.run_time[kept] / factor, 1.0, limit[kept])
    return Jobs(small, shown, tuple(size_class(int(gpus)) for gpus in small.gpus), left_out)


def size_class(gpus: int) -> str:
    """`Jobs.kind` of a trace's job."""
    if gpus == 0:
        return "CPUs only"
    return "1 GPU" if gpus == 1 else "2 to 4 GPUs" if gpus <= 4 else "5 GPUs or more"


def sbatch(jobs: Jobs, shape: ClusterShape, nice: np.ndarray[Any, np.dtype[np.int64]]) -> list[list[str]]:
    """The command of each job. Requests are those that the simulator works with (rltuned.simulate.requests)."""
    small = jobs.workload
    asked = requests(shape, small, small.time_limit)
    if asked.rejected:
        row, reason = next(iter(asked.rejected.items()))
        message = f"job {small.job_id[row]} can never run here: {reason}"
        raise TestbedError(message)
    commands = []
    for row in range(len(small)):
        type_ = f"{name}:" if (name := small.gpu_type.value(row)) and small.gpus[row] else ""
        gpus, cpus, mem = (int(of[row]) for of in (asked.gpus, asked.cpus, asked.mem))
        command = ["sbatch", "--parsable", f"--uid={small.user.value(row) or USERS[0]}", "-o", "/dev/null"]
        command += [f"--nice={nice[row]}", f"--time={round(small.time_limit[row] / MINUTE)}"]
        for option in ("partition", "account", "qos"):
            value = getattr(small, option).value(row)
            command += [f"--{option}={value}"] if value else []
        if asked.per_node[row]:
            # No --ntasks: with it select/cons_tres counts a node's CPUs otherwise (docs/simulator.md,
            # Placement as Slurm does it).
            command += [f"--nodes={asked.nodes[row]}", f"--cpus-per-task={max(cpus, 1)}"]
            command += [f"--mem={max(mem, 1)}"]
            command += [f"--gres=gpu:{type_}{gpus}"] if gpus else []
        elif gpus:
            # No --cpus-per-gpu: with it the GPUs are laid out in another way.
            command += [f"--gpus={type_}{gpus}", "--cpus-per-task=1", f"--mem={max(math.ceil(mem / gpus), 1)}"]
        else:
            command += [f"--ntasks={cpus}", f"--mem-per-cpu={max(math.ceil(mem / cpus), 1)}"]
        commands.append([*command, f"--wrap=sleep {small.run_time[row]:.2f}"])
    return commands


# --- the cluster -------------------------------------------------------------------------------


def _pairs(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\S+?)=(\S*)", line))


def read_cluster(project: Project) -> dict[str, Any]:
    """Nodes and partitions as the long form of a cluster (`simulate.shape`), nodes in the order of their names."""
    pools = []
    for line in project.execute("scontrol -o show node").stdout.splitlines():
        node = _pairs(line)
        gres = re.match(r"gpu(?::([A-Za-z][\w.+-]*))?:(\d+)", node.get("Gres", ""))
        pools.append(
            {
                "name": node["NodeName"],
                "nodes": 1,
                "gpus_per_node": int(gres[2]) if gres else 0,
                "gpu_type": (gres[1] or "") if gres else "",
                "cpus": int(node["CPUTot"]),
                "mem_mib": float(node["RealMemory"]),
                **({"disk_mib": float(node["TmpDisk"])} if node["TmpDisk"] != "0" else {}),
            }
        )
    # As slurmctld does: n2 before n10.
    pools.sort(key=lambda pool: [(not part.isdigit(), part.zfill(9)) for part in re.split(r"(\d+)", str(pool["name"]))])
    partitions = []
    for line in project.execute("scontrol -o show partition").stdout.splitlines():
        part = _pairs(line)
        entry: dict[str, Any] = {
            "name": part["PartitionName"],
            "pools": sorted(expand(part["Nodes"])),
            "tier": int(part["PriorityTier"]),
            "oversubscribe": part["OverSubscribe"],
            "default": part["Default"] == "YES",
        }
        partitions.append(entry if part["MaxTime"] == "UNLIMITED" else {**entry, "max_time": part["MaxTime"]})
    return {"pools": pools, "partitions": partitions}


def plain_priorities(scheduler_parameters: str) -> dict[str, str]:
    """Of slurm.conf in a replay: Slurm's own priority is a constant less the nice value. Under the daemon, which leaves
    alone what a nice decides, all jobs have the same: the earlier submission goes first (`fidelity.alike`).
    """
    weights = {f"PriorityWeight{of}": "0" for of in ("Age", "Fairshare", "JobSize", "Partition")}
    ours = {**weights, "PriorityWeightQOS": str(HIGHEST)}
    return {**ours, "SchedulerParameters": scheduler_parameters} if scheduler_parameters else ours


@contextmanager
def prepared(project: Project, settings: Mapping[str, str]) -> Iterator[None]:
    """Slurm has these settings and no other weights, and slurmctld logs its passes; all put back at the end."""
    ours = "".join(f"{name}={value}\n" for name, value in settings.items())
    # The RPC limiter would let a daemon change two jobs a second; a compressed minute is a second.
    replaced = "|".join(["PriorityWeight", "SlurmctldParameters=rl_enable", *(f"{name}=" for name in settings)])
    change = f"""
        set -e
        cp {CONF} {CONF}.replay
        grep -viE '^({replaced})' {CONF}.replay >{CONF}.new
        cat >>{CONF}.new
        cat {CONF}.new >{CONF}
        rm {CONF}.new
        scontrol reconfigure
    """
    _when_slurm_answers(project, change, ours)
    project.execute("scontrol setdebug debug")
    try:
        yield
    finally:
        project.execute("scontrol setdebug info", check=False)
        _when_slurm_answers(project, f"cat {CONF}.replay >{CONF} && rm {CONF}.replay && scontrol reconfigure", "")


def _when_slurm_answers(project: Project, script: str, text_input: str) -> None:
    project.execute(script, text_input=text_input)
    answer = (
        "for i in $(seq 100); do scontrol ping >/dev/null && ! sinfo -h -N -o %T | grep -qE 'unk|\\*' && exit 0; "
        "sleep 0.2; done; exit 1"
    )
    project.execute(answer)
    # 24.11 and 26.05 start a new slurmctld for a new configuration; its first pass is within a second or two.
    time.sleep(2.0)


# --- submission, in the container ---

# Runs in ctl: there a submission takes 8 ms. Reads the jobs from standard input, tells each submission at once.
SUBMIT: Final = """
import json, subprocess, sys, time
jobs = json.load(sys.stdin)
zero = time.time() + 1.0
print(json.dumps({"zero": zero}), flush=True)
for at, command in jobs:
    wait = zero + at - time.time()
    if wait > 0:
        time.sleep(wait)
    done = subprocess.run(command, capture_output=True, text=True, cwd="/tmp")
    if done.returncode:
        sys.exit(" ".join(command) + ": " + done.stderr.strip())
    print(done.stdout.strip().split(";")[0], flush=True)
"""


def submit(
    project: Project, at: Iterable[float], commands: Sequence[Sequence[str]], told: Callable[[int], None]
) -> tuple[float, list[int]]:
    """Submits each job at its time; the moment (epoch) that is 0 of all times, and the job ids. Blocks until the last
    one.
    """
    plan = json.dumps([[float(when), list(command)] for when, command in zip(at, commands, strict=True)])
    inner = ["docker", "exec", "-i", project.container(), "python3", "-c", SUBMIT]
    ids: list[int] = []
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as complaint:
        given.write(plan)
        given.seek(0)
        with subprocess.Popen(inner, stdin=given, stdout=subprocess.PIPE, stderr=complaint, text=True) as running:
            said = iter(running.stdout or ())
            first = next(said, "")
            for line in said:
                ids.append(int(line))
                told(len(ids))
        complaint.seek(0)
        if len(ids) != len(commands):
            message = f"{len(ids)} of {len(commands)} jobs were accepted: {complaint.read()[-2000:]}"
            raise TestbedError(message)
    return float(json.loads(first)["zero"]), ids


def wait_for_the_end(project: Project, jobs: int, told: Callable[[int], None], pause: float) -> None:
    """Until the queue is empty; it is looked at after each `pause` seconds."""
    while True:
        left = int(project.execute("squeue -h -o %A | wc -l").stdout)
        told(jobs - left)
        if not left:
            return
        time.sleep(pause)


# --- what slurmctld's log says -----------------------------------------------------------------

_LINE: Final = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+)\] (.*)")
_SUBMITTED: Final = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+) ")
_MAIN: Final = re.compile(r"sched: Allocate JobId=(\d+) ")
_BACKFILL: Final = re.compile(r"sched/backfill: _start_job: Started JobId=(\d+) ")
# 26.05 does not log what backfill starts; a job's credential is made when it is started.
_CREDENTIAL: Final = re.compile(r"debug: +slurm_cred_create: creating credential for JobId=(\d+)")
_ENDED: Final = re.compile(r"_job_complete: JobId=(\d+) (?:done|WEXITSTATUS|WTERMSIG|WIFSIGNALED)")
# The passes that 22.05 makes besides, after a job has ended, say "default depth".
_MAIN_PASS: Final = re.compile(r"debug: +sched: Running job scheduler for full queue")
_BACKFILL_PASS: Final = re.compile(r"debug: +(?:sched/)?backfill: (?:_attempt_backfill: )?beginning")


@dataclass
class Logged:
    """Times (epoch, milliseconds) by job id, and those of the passes."""

    submit: dict[int, float]
    start: dict[int, float]
    end: dict[int, float]
    backfilled: set[int]
    main_passes: list[float]
    backfill_passes: list[float]


def parse_log(text: str, offset: float = 0.0) -> Logged:
    """What the log of slurmctld (level debug) says; `offset` is its clock's distance from UTC, seconds."""
    logged = Logged({}, {}, {}, set(), [], [])
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        at, said = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() - offset, match[2]
        if found := _SUBMITTED.match(said):
            logged.submit[int(found[1])] = at
        elif found := _MAIN.match(said):
            logged.start[int(found[1])] = at
            logged.backfilled.discard(int(found[1]))
        elif found := _BACKFILL.match(said) or _CREDENTIAL.match(said):
            if int(found[1]) not in logged.start:
                logged.start[int(found[1])] = at
                logged.backfilled.add(int(found[1]))
        elif found := _ENDED.match(said):
            logged.end.setdefault(int(found[1]), at)
        elif _MAIN_PASS.match(said):
            logged.main_passes.append(at)
        elif _BACKFILL_PASS.match(said):
            logged.backfill_passes.append(at)
    return logged


def grid(passes: Sequence[float], zero: float) -> dict[str, float]:
    """Interval and first moment (at or after 0) of passes that come regularly: a line through them."""
    times = np.unique(np.round(np.asarray(passes) - zero, 3))
    times = (
        times[np.concatenate(([True], np.diff(times) > 0.2))] if len(times) else times
    )  # one pass logs several lines
    if len(times) < 3:
        return {}
    gaps = np.diff(times)
    usual = float(np.median(gaps))
    number = np.concatenate(([0], np.cumsum(np.maximum(np.round(gaps / usual), 1.0))))
    interval, first = np.polyfit(number, times, 1)
    return {"interval": round(float(interval), 5), "offset": round(float(first % interval), 4)}


# --- the daemon --------------------------------------------------------------------------------

DAEMON: Final = "daemon:"
RLTUNED: Final = "/opt/rltuned/venv/bin/rltuned"
Sections = Mapping[str, Mapping[str, Any]]
"""Of a configuration of the daemon: section, key, value."""


def by_limits(policy: str, interval: float) -> Sections:
    """The daemon's configuration in a replay: an order alone, and nothing known but the limits."""
    return {
        "cycle": {"interval": interval, "stage": "active"},
        "policy": {"name": policy.removeprefix(DAEMON)},
        "estimates": {"source": "limit"},
        "lend": {"share": 1.0, "most": 256},
        "placement": {"apply": "off"},
    }


def toml(sections: Sections) -> str:
    """The configuration file of a daemon that nobody scrapes."""
    lines = []
    for name, values in {
        **sections,
        "metrics": {"listen": "127.0.0.1:0"},
        "log": {"format": "json", "level": "debug"},
    }.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


@contextmanager
def steered(project: Project, sections: Sections, warm_up: str = "") -> Iterator[dict[str, Any]]:
    """A real daemon steers the cluster meanwhile; at the end all that it changed is undone. Gives facts about it.

    `warm_up`: a shell command that runs as the daemon's user before it is started.
    """
    facts: dict[str, Any] = {}
    project.install_rltuned()
    check = f"runuser -u rltuned -- {RLTUNED} config check /etc/rltuned/replay.toml"
    project.execute(f"cat >/etc/rltuned/replay.toml && {check}", text_input=toml(sections))
    if warm_up:
        project.execute(f"cd /tmp; runuser -u rltuned -- {warm_up}")
    start = (
        f"nohup setsid runuser -u rltuned -- {RLTUNED} run --config /etc/rltuned/replay.toml"
        " >/var/log/rltuned-replay.log 2>&1 </dev/null & echo $! >/run/rltuned-replay.pid;"
        " for i in $(seq 150); do grep -q daemon.started /var/log/rltuned-replay.log && exit 0; sleep 0.2; done;"
        " tail -5 /var/log/rltuned-replay.log >&2; exit 1"
    )
    project.execute(start)
    try:
        yield facts
    finally:
        project.execute("pkill -TERM -u rltuned -x rltuned; sleep 1; true", check=False)
        log = project.execute("cat /var/log/rltuned-replay.log", check=False).stdout
        cycles = [json.loads(line) for line in log.splitlines() if '"cycle.done"' in line]
        read = next((json.loads(line) for line in log.splitlines() if '"history.read"' in line), {"sentence": "0"})
        facts["history"] = int(read["sentence"].split()[0])
        facts["cycles"] = len(cycles)
        facts["changes"] = sum(sum(cycle.get("changes", {}).values()) for cycle in cycles)


# --- what a cluster did with the jobs


def observed(
    project: Project, jobs: Jobs, ids: Sequence[int], zero: float, position: int
) -> tuple[Logged, list[dict[str, Any]]]:
    """What slurmctld's log says from that byte on, and of each job, in the order of `ids`, when and where it ran.

    Raises:
        TestbedError: the log does not say when a job was submitted, started or ended.
    """
    text = project.execute(f"tail -c +{position + 1} {LOG}").stdout
    zone = project.execute("date +%z").stdout.strip()
    offset = (1 if zone[0] == "+" else -1) * (int(zone[1:3]) * 3600 + int(zone[3:5]) * 60)
    logged = parse_log(text, offset)
    accounted = _sacct(project, ids)
    found = []
    for row, job in enumerate(ids):
        missing = [name for name in ("submit", "start", "end") if job not in getattr(logged, name)]
        if missing:
            message = (
                f"slurmctld's log does not say when job {job} ({jobs.workload.job_id[row]}) had its "
                f"{', '.join(missing)}"
            )
            raise TestbedError(message)
        nodes, state = accounted.get(job, ("", ""))
        found.append(
            {
                "slurm_job_id": job,
                "intended": round(float(jobs.workload.submit_time[row]), 3),
                "submit": round(logged.submit[job] - zero, 3),
                "eligible": round(logged.submit[job] - zero, 3),
                "start": round(logged.start[job] - zero, 3),
                "end": round(logged.end[job] - zero, 3),
                "backfilled": job in logged.backfilled,
                "nodes": nodes,
                "state": state,
            }
        )
    return logged, found


def played(
    project: Project, jobs: Jobs, commands: Sequence[Sequence[str]], told: Callable[[str, int], None], pause: float
) -> tuple[Logged, float, list[int], list[dict[str, Any]]]:
    """Submits all jobs at their times and waits until they have ended.

    Args:
        project: a cluster that is up.
        jobs: of which `commands` are the submissions.
        commands: of `sbatch`.
        told: is told what ("submitted", "ended") how many jobs are.
        pause: seconds between two looks at the queue.

    Returns:
        What slurmctld has logged meanwhile; the moment (epoch) that is 0 of all times; ids; as `observed`.
    """
    position = int(project.execute(f"stat -c %s {LOG}").stdout)
    zero, ids = submit(project, jobs.workload.submit_time, commands, lambda n: told("submitted", n))
    wait_for_the_end(project, len(ids), lambda n: told("ended", n), pause)
    time.sleep(1.0)
    logged, ran = observed(project, jobs, ids, zero, position)
    return logged, zero, ids, ran


def described(jobs: Jobs) -> list[dict[str, Any]]:
    """What each job is, as REPLAY.json says it."""
    small = jobs.workload
    return [
        {
            "row": row,
            "job_id": int(small.job_id[row]),
            "class": jobs.kind[row],
            "gpus": int(small.gpus[row]),
            "gpu_type": small.gpu_type.value(row),
            "nodes_asked": int(small.nodes[row]),
            "cpus": int(small.cpus[row]),
            "mem": float(small.mem[row]),
            "partition": small.partition.value(row),
            "user": small.user.value(row),
            "run_time": float(small.run_time[row]),
            "time_limit": float(small.time_limit[row]),
            "estimate": float(jobs.shown_to_policy[row]),
        }
        for row in range(len(small))
    ]


# --- the whole ---------------------------------------------------------------------------------


def order(jobs: Jobs, policy: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(N,) nice value of each job: its place in the order of a plain rule, which Slurm then follows from the start.

    None under the daemon, which leaves alone what a nice decides: Slurm's own order is that of submission then.
    """
    small = jobs.workload
    if policy.startswith(DAEMON):
        return np.zeros(len(small), dtype=np.int64)
    if policy == "fifo":
        return np.arange(len(small), dtype=np.int64)
    rule = by_name(policy)
    if rule.ages:
        message = f"{policy} changes its order while jobs wait: let the daemon do it (--policy {DAEMON}{policy})"
        raise TestbedError(message)

    view = QueueView(
        run_time=jobs.shown_to_policy,
        time_limit=small.time_limit,
        gpus=small.gpus.astype(np.float64),
        wait=np.zeros(len(small)),
        submit=small.submit_time,
        priority=-np.arange(len(small), dtype=np.float64),
    )
    nice = np.empty(len(small), dtype=np.int64)
    nice[np.lexsort((np.arange(len(small)), rule.key(view)))] = np.arange(len(small))
    return nice


def replay(project: Project, jobs: Jobs, cluster: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Runs the jobs; what REPLAY.json holds."""
    small, shape = jobs.workload, from_json(cluster, project.name)
    nice = order(jobs, options.policy)
    commands = sbatch(jobs, shape, nice)
    if project.execute("squeue -h -o %A | wc -l").stdout.strip() != "0":
        message = f"{project.name} is not idle: there are jobs in its queue"
        raise TestbedError(message)
    least = float((small.submit_time + small.run_time).max())
    say(
        f"{len(small)} jobs, at least {least:.0f} s"
        + "".join(f"; {n} left out: {why}" for why, n in jobs.left_out.items())
    )
    facts: dict[str, Any] = {}
    settings = plain_priorities(options.scheduler_parameters)
    with prepared(project, settings), ExitStack() as stack, progress_bar() as bar:
        if options.policy.startswith(DAEMON):
            facts = stack.enter_context(steered(project, by_limits(options.policy, options.interval)))
        parameters = project.execute("scontrol show config | sed -n 's/^SchedulerParameters *= //p'").stdout.strip()
        logged, zero, _, ran = played(project, jobs, commands, lambda what, n: bar(what, n, len(small)), 1.0)
    for name, passes in (("main", logged.main_passes), ("backfill", logged.backfill_passes)):
        if not grid(passes, zero):
            seconds = max(logged.end.values(), default=zero) - zero
            message = (
                f"slurmctld's {name} scheduler made {len(passes)} passes in {seconds:.0f} s, too few for a regular one "
                f"({len(logged.backfilled)} of {len(logged.start)} jobs were backfilled; "
                f"SchedulerParameters={parameters}). Was slurmctld started with other ones? Start it anew"
            )
            raise TestbedError(message)
    found = [
        {**what, "nice": int(nice[row]), **when}
        for row, (what, when) in enumerate(zip(described(jobs), ran, strict=True))
    ]
    meta = {
        "form": FORM,
        "slurm": project.execute("scontrol -V").stdout.split()[-1],
        "scheduler_parameters": parameters,
        "workload": small.source.name,
        "sha256": small.source.sha256,
        "left_out": jobs.left_out,
        "factor": options.factor,
        "policy": options.policy,
        "interval": options.interval if options.policy.startswith(DAEMON) else None,
        "daemon": facts,
        "seed": options.seed,
        "command_line": ["testbed", "replay", *options.argv],
        "zero": zero,
        "main_pass": grid(logged.main_passes, zero),
        "backfill_pass": grid(logged.backfill_passes, zero),
        "passes": {"main": len(logged.main_passes), "backfill": len(logged.backfill_passes)},
    }
    return {"meta": meta, "cluster": cluster, "jobs": found}


def _sacct(project: Project, ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Nodes and state of each job."""
    query = f"sacct -X -n -P -a -j {','.join(map(str, ids))} -o JobID,NodeList,State"
    rows = (line.split("|") for line in project.execute(query).stdout.splitlines())
    return {int(row[0]): (row[1], row[2]) for row in rows if row[0].isdigit()}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    ageless = ", ".join(sorted(name for name, rule in RULES.items() if not rule.ages))
    top = argparse.ArgumentParser(
        prog="testbed replay",
        description="Submits a workload of sleep jobs to a cluster that is up, at their times, divided by a factor; "
        "waits until all have ended; writes when and where each ran. fidelity.py compares that "
        "with the simulator.",
    )
    top.add_argument(
        "--project", type=str.lower, default=DEFAULT_PROJECT, help="name of the cluster (default: %(default)s)"
    )
    top.add_argument("--out", type=Path, required=True, help="the file to write")
    top.add_argument("--jobs", type=int, default=200, help="how many (default: %(default)s)")
    top.add_argument("--seed", type=int, default=1)
    top.add_argument(
        "--policy",
        default="fifo",
        help=f"fifo: plain Slurm, in order of submission. A rule that does not age ({ageless}): "
        f"Slurm follows it by nice values from the start. {DAEMON}NAME: rltuned, installed from this source tree, "
        f"steers with that rule, or with the model ({DAEMON}model). Default: %(default)s",
    )
    top.add_argument(
        "--interval", type=float, default=2.0, help="the daemon's cycle, real seconds (default: %(default)s)"
    )
    top.add_argument(
        "--scheduler-parameters",
        default="",
        metavar="TEXT",
        help="SchedulerParameters during the replay (default: the testbed's)",
    )
    mixed = top.add_argument_group("the built-in mixture (no --workload)")
    mixed.add_argument("--span", type=float, default=20.0, help="seconds in which the jobs come (default: %(default)s)")
    mixed.add_argument("--mean", type=float, default=4.5, help="mean run time, seconds (default: %(default)s)")
    trace = top.add_argument_group("a trace")
    trace.add_argument("--workload", type=Path, metavar="FILE", help="any format that rltuned.simulate.workload reads")
    trace.add_argument("--start", type=int, default=0, metavar="ROW", help="first job (default: the file's first)")
    trace.add_argument("--factor", type=float, default=60.0, help="how many times as fast (default: %(default)s)")
    trace.add_argument(
        "--estimates",
        default="history",
        help="where a job's limit comes from: true, limit, noisy:SIGMA, history (default: %(default)s)",
    )
    return top


def main(argv: Sequence[str]) -> int:
    """`testbed replay`; 0, or 1 with the reason on stderr."""
    options = parser().parse_args(argv)
    options.argv = list(argv)
    try:
        project = discover(options.project)
        cluster = read_cluster(project)
        if options.workload is None:
            options.factor = 1.0
            # A daemon makes an order at once only of jobs of one user: others lend a part of what they have waited.
            users = 1 if options.policy.startswith(DAEMON) else len(USERS)
            jobs = mixture(options.jobs, options.seed, options.span, options.mean, users)
        else:
            part = read(options.workload).take(slice(options.start, options.start + options.jobs))
            jobs = from_trace(part, from_json(cluster, project.name), options.estimates, options.seed, options.factor)
            if options.policy.startswith(DAEMON):  # the daemon knows the limits and nothing else
                jobs = replace(jobs, shown_to_policy=jobs.workload.time_limit.copy())
        done = replay(project, jobs, cluster, options)
        options.out.write_text(json.dumps(done, indent=1) + "\n")
    except (TestbedError, RltunedError) as error:
        say(str(error))
        return 1
    wait = np.mean([job["start"] - job["eligible"] for job in done["jobs"]])
    late = max(job["submit"] - job["intended"] for job in done["jobs"])
    say(
        f"{len(done['jobs'])} jobs in {max(job['end'] for job in done['jobs']):.0f} s, mean wait {wait:.2f} s, "
        f"submitted at most {late:.2f} s late: {options.out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
