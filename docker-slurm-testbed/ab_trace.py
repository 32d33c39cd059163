"""Windows of real traces for an A/B: which jobs, how they are compressed, and the accounts and the past they need.

A window comes from the trace's test part. The jobs before it make its initial state, and those before that its
history. All times are divided by one factor; limits, which Slurm keeps in whole minutes, are rounded up.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ab_jobs import (
    ARRIVING,
    MULTIFACTOR,
    PARAMETERS,
    PARTITION,
    SHORTEST,
    TRACE_ARMS,
    WEIGHT,
    Site,
    associations,
    weights_text,
)
from ab_simulated import simulate
from replay import LEAST_MEM, MINUTE, Jobs, size_class
from testbed import TestbedError, say

from rltuned.core.changes import OverSubscribe
from rltuned.core.config import Config
from rltuned.core.ended import EndedJob
from rltuned.core.scheduler import SchedulerParameters
from rltuned.decide.rank import by_name
from rltuned.lab.evaluate.evaluation_settings import as_configured
from rltuned.lab.evaluate.tune import tune
from rltuned.lab.evaluate.windows import Split, bounds, draw
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.simulate.requests import requests
from rltuned.simulate.run_times import ended_before
from rltuned.simulate.shape import ClusterShape, from_json
from rltuned.simulate.values import JobFate
from rltuned.simulate.workload.jobs import Estimates, Workload
from rltuned.simulate.workload.presets import presets
from rltuned.simulate.workload.readers import read
from rltuned.simulate.workload.simulated_estimates import estimate
from rltuned.simulate.workload.synthetic import generate

if TYPE_CHECKING:
    from testbed import Project

Floats = np.ndarray[Any, np.dtype[np.float64]]
Rows = np.ndarray[Any, np.dtype[np.intp]]

GPUS: Final = 8
"""Of a node."""
CPUS_PER_GPU: Final = 8
MEM: Final = 256_000
"""MiB of a node. Both as `up --scale` makes nodes."""
PAST: Final = 2_000
"""Jobs before the window that the accounting knows."""
LONGEST_LIMIT: Final = 7 * 1440.0
"""MaxTime of the testbed's partition, minutes."""
SPARE: Final = 5.0
"""Seconds between a run time and its limit, at least: slurmctld must not kill what ends in time."""
CLIP: Final = 0.25
"""Longest run, of the planned minutes."""
CUT: Final = 0.05
"""Share of the runs that may be longer, and are cut."""
QUEUED: Final = 3.0
"""Seconds after those that run at the beginning are submitted, the ones that wait are."""
BEGINS: Final = 8.0
"""When the window begins, likewise."""
WAITS: Final = 10.0
"""Mean wait in Slurm's own order, seconds, that a window has at least."""
LAUNCH: Final = 0.15
"""Seconds that a job takes beyond its sleep: to choose windows by simulation."""
TRIES: Final = 20
SYNTHETIC: Final = 20_000
"""Jobs of a trace that is made of the shipped quantiles."""
USERS_OF: Final = (2.0, 0.43)
"""Users among n jobs, a·n^b, the k-th with a share ∝ 1/k: as in generated workloads (`simulate.workload.synthetic`)."""
FULL: Final = 0.85
"""Share of the GPU time of the planned minutes that all jobs take, at most: some nodes always stand half empty."""
FIRST_UID: Final = 3_000
FIRST_PAST_ID: Final = 50_000_000
"""Job ids that Slurm does not reach."""


def cluster(nodes: int, *, exclusive: bool = False) -> dict[str, Any]:
    """`up --scale NODESx8` as `replay.read_cluster` reads it, as far as these jobs go; `exclusive`: a node runs one."""
    of_each = {"nodes": 1, "gpus_per_node": GPUS, "gpu_type": "p100", "cpus": GPUS * CPUS_PER_GPU, "mem_mib": MEM}
    pools = [{"name": f"n{number}", **of_each} for number in range(nodes)]
    sharing = {"oversubscribe": "EXCLUSIVE"} if exclusive else {}
    return {"pools": pools, "partitions": [{"name": PARTITION, "default": True, "max_time": "7-00:00:00", **sharing}]}


def trace(name: str, shape: ClusterShape, seed: int) -> Workload:
    """A file, or, where there is none, a generated trace of the preset with that name; every job has a user, and is for
    the cluster's only partition.

    An account that the trace does not know is the user's own, as in sacct of many sites.
    """
    jobs = read(Path(name)) if Path(name).exists() or name not in presets().presets else None
    jobs = jobs or generate(name, SYNTHETIC, shape, seed)
    user = jobs.user.texts()
    if (jobs.user.codes < 0).any():
        user = _spread(jobs, seed)
    numbers = {who: number for number, who in enumerate(dict.fromkeys(user))}
    account = [known or who for known, who in zip(jobs.account.texts(), user, strict=True)]
    accounts = {who: number for number, who in enumerate(dict.fromkeys(account))}
    named = jobs.user.of([f"u{numbers[who]}" for who in user])
    least = np.maximum(jobs.gpus, np.maximum(jobs.nodes, 1))
    return replace(
        jobs,
        user=named,
        account=jobs.account.of([f"a{accounts[who]}" for who in account]),
        cpus=np.maximum(jobs.cpus, least),
        mem=np.maximum(jobs.mem, LEAST_MEM * least),
        partition=jobs.partition.of([PARTITION] * len(jobs)),
        qos=jobs.qos.of(["normal"] * len(jobs)),
        gpu_type=jobs.gpu_type.of([""] * len(jobs)),
    )


def _spread(jobs: Workload, seed: int) -> list[str]:
    """Users for a trace that has none: jobs of one size that follow each other are one user's."""
    share = 1.0 / np.arange(1, max(round(USERS_OF[0] * len(jobs) ** USERS_OF[1]), 1) + 1)
    sweep = np.cumsum(np.diff(jobs.gpus, prepend=-1) != 0)
    owner = np.random.default_rng(seed).choice(len(share), sweep.max() + 1, p=share / share.sum())
    return [str(who) for who in owner[sweep]]


def window(
    name: str, nodes: int, jobs: int, minutes: float, seed: int, *, exclusive: bool = False
) -> tuple[Jobs, Site, Workload]:
    """The first window of the trace's test part, in the order of the seed, in which jobs wait in Slurm's own order; and
    the trace's jobs before the test part, compressed as the window is.

    Raises:
        TestbedError: there is none among the first of them.
    """
    shape = from_json(cluster(nodes, exclusive=exclusive), f"{nodes}x{GPUS}")
    whole = trace(name, shape, seed)
    limit = estimate(whole, "history", seed).time_limit
    whole = replace(whole, time_limit=limit, run_time=np.minimum(whole.run_time, limit))
    for drawn in draw(len(whole), jobs, TRIES, seed, Split.TEST):
        first, last = max(drawn.start - PAST, 0), drawn.start + jobs
        made, site, clipped = compressed(whole.take(slice(first, last)), drawn.start - first, shape, minutes)
        small, own = made.workload, slice(made.warm, None)
        start, _ = simulate(made, shape, TRACE_ARMS[MULTIFACTOR], site, 1.0, LAUNCH, 0)
        wait = float((start - small.submit_time)[own].mean())
        if wait >= WAITS:
            work = float(small.run_time[own] @ _taken(small, shape)[own])
            load = work / (shape.gpus * float(np.ptp(small.submit_time[own])))
            say(
                f"{name}, seed {seed}: jobs from row {drawn.start}, load {load:.1f}; {made.warm} run when it begins, "
                f"{len(small) - made.warm} wait or come; {site.factor:.1f} times as fast, {clipped} runs cut to "
                f"{CLIP * minutes:g} min; {wait:.0f} s mean wait in a simulated Slurm; "
                f"left out: {made.left_out or 'none'}"
            )
            return made, site, _earlier(whole.take(slice(bounds(len(whole), Split.TEST)[0])), site)
    message = f"{name}: jobs do not wait on {nodes} x {GPUS} GPUs in {TRIES} windows of {jobs} jobs"
    raise TestbedError(message)


def compressed(jobs: Workload, begins: int, shape: ClusterShape, minutes: float) -> tuple[Jobs, Site, int]:
    """Jobs of a trace whose window begins at row `begins`, and how many run times were cut.

    Those of before are the past, or, as far as they run or wait when the window begins, its initial state.

    Raises:
        TestbedError: they are too many.
    """
    jobs = replace(jobs, submit_time=jobs.submit_time - jobs.submit_time[begins])
    never = requests(shape, jobs, np.minimum(jobs.time_limit, LONGEST_LIMIT * MINUTE)).rejected
    fits = np.setdiff1d(np.arange(len(jobs)), list(never))
    left_out = Counter(reason for row, reason in never.items() if row >= begins)
    jobs, begins = jobs.take(fits), int(np.searchsorted(fits, begins))

    running, waiting, since = _initial_state(jobs.take(slice(begins)), len(jobs) - begins, shape)
    rows = np.concatenate((running, waiting, np.arange(begins, len(jobs))))
    warm = len(running) + len(waiting)
    run, limit = jobs.run_time[rows], jobs.time_limit[rows]
    run[: len(running)] -= since
    limit[: len(running)] -= since
    longest = CLIP * minutes * MINUTE
    gpus, most = _taken(jobs, shape)[rows], FULL * shape.gpus * minutes * MINUTE
    if SHORTEST * gpus.sum() > most:
        message = f"{len(rows)} jobs are too many for {minutes:g} minutes on {shape.gpus} GPUs"
        raise TestbedError(message)
    arriving = float(jobs.submit_time[-1]) / (ARRIVING * minutes * MINUTE)
    factor = max(arriving, float(np.quantile(run, 1.0 - CUT)) / longest, 1.0)
    while np.clip(run / factor, SHORTEST, longest) @ gpus > most:
        factor *= 1.01

    submit = BEGINS + np.maximum(jobs.submit_time[rows], 0.0) / factor
    submit[:warm] = np.repeat((0.0, QUEUED), (len(running), len(waiting)))
    short, short_limit = _scaled(run, limit, factor, longest)
    small = replace(jobs.take(rows), submit_time=submit, run_time=short, time_limit=short_limit)
    before = jobs.take(np.setdiff1d(np.arange(begins), rows))
    site = Site(minutes, _slurm_conf(factor, short_limit, shape), factor, _past(before, factor, longest), shape.text)
    kind = tuple(map(size_class, small.gpus.tolist()))
    return (
        Jobs(small, short_limit.copy(), kind, dict(left_out), len(running)),
        site,
        int((run / factor > longest).sum()),
    )


def _taken(jobs: Workload, shape: ClusterShape) -> Floats:
    """(N,) GPUs that each job takes, all of its nodes where these run one job."""
    return Simulation(shape, jobs, Estimates(jobs.time_limit, jobs.time_limit.copy())).taken_gpus


def _initial_state(before: Workload, most: int, shape: ClusterShape) -> tuple[Rows, Rows, Floats]:
    """Rows of `before` that run at 0 and that wait, by FIFO of the last `most`; seconds that the first have run."""
    late = before.take(slice(max(len(before) - most, 0), None))
    if not len(late):
        return np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0)
    simulation = Simulation(shape, late, Estimates(late.time_limit, late.time_limit.copy()))
    simulation.run(RuleRanker(by_name("fifo")), until=float(np.nextafter(0.0, -1.0)))
    running, waiting = (np.flatnonzero(simulation.fate == fate) for fate in (JobFate.RUNNING, JobFate.WAITING))
    first = len(before) - len(late)
    return running + first, waiting + first, -simulation.start[running]


def _scaled(run: Floats, limit: Floats, factor: float, longest: float) -> tuple[Floats, Floats]:
    """(N,) run times and limits of compressed jobs."""
    short = np.round(np.clip(run / factor, SHORTEST, longest), 2)
    whole = np.maximum(np.ceil(limit / factor / MINUTE), np.ceil((short + SPARE) / MINUTE))
    return short, np.minimum(whole, LONGEST_LIMIT) * MINUTE


def _earlier(jobs: Workload, site: Site) -> Workload:
    run, limit = _scaled(jobs.run_time, jobs.time_limit, site.factor, CLIP * site.minutes * MINUTE)
    submit = (jobs.submit_time - jobs.submit_time[0]) / site.factor
    return replace(jobs, submit_time=submit, run_time=run, time_limit=limit)


def tuned_lines(earlier: Workload, nodes: int, site: Site, seed: int) -> list[str]:
    """Lines of slurm.conf that `rltuned tune` finds for compressed jobs; none where the testbed's own are as good."""
    shape = from_json(cluster(nodes), f"{nodes}x{GPUS}")
    words = (word.partition("=") for word in site.conf["SchedulerParameters"].split(","))
    passes = SchedulerParameters.read({name: value for name, _, value in words})
    of = {"weights": weights_text(site.conf), "scheduler": passes.text(), "estimates": "limit", "seed": seed}
    settings = as_configured(Config(), {"trace": earlier.source.name, "cluster": shape.text, **of})
    found = tune(settings, earlier, shape, "", daemon=False)
    say(f"tuned: {found.reason}")
    return found.lines()


def _past(before: Workload, factor: float, longest: float) -> tuple[EndedJob, ...]:
    rows, _, ends = ended_before(before, Estimates(before.time_limit, before.time_limit), 0.0)
    of = before.take(rows)
    run, limit = _scaled(of.run_time, of.time_limit, factor, longest)
    names = (of.user.texts(), of.account.texts(), of.partition.texts())
    columns = (of.gpus.tolist(), limit.tolist(), run.tolist(), (ends / factor).tolist(), of.cpus.tolist())
    return tuple(map(EndedJob, range(FIRST_PAST_ID, FIRST_PAST_ID + len(of)), *names, *columns))


def _slurm_conf(factor: float, limit: Floats, shape: ClusterShape) -> dict[str, str]:
    """Fair share in force; Slurm's slow clocks as fast as everything else; the only partition as it is in `shape`."""
    week = str(max(round(7 * 1440 / factor), 1))
    sharing = {}
    if shape.partitions[0].oversubscribe is OverSubscribe.EXCLUSIVE:
        nodes = f"Nodes=n[0-{len(shape.nodes) - 1}] State=UP Default=YES MaxTime=7-0 DefMemPerCPU=1000"
        sharing = {"PartitionName": f"{PARTITION} {nodes} OverSubscribe=EXCLUSIVE"}
    return {
        **sharing,
        **{f"PriorityWeight{name}": str(WEIGHT) for name in ("Age", "Partition", "QOS")},
        "PriorityWeightFairShare": str(10 * WEIGHT),
        "PriorityWeightJobSize": str(WEIGHT // 10),
        "PriorityMaxAge": week,
        "PriorityDecayHalfLife": week,
        "SchedulerParameters": PARAMETERS.replace("bf_window=1440", f"bf_window={math.ceil(limit.max() / MINUTE)}"),
    }


# --- on the cluster ----------------------------------------------------------------------------

COLUMNS: Final = (
    "id_job, id_assoc, id_user, id_group, account, `partition`, job_name, cpus_req, nodes_alloc, timelimit, state, "
    "time_submit, time_eligible, time_start, time_end, tres_req, tres_alloc"
)
COMPLETED: Final = 3
"""Of `job_states` in slurm.h."""


def enrol(project: Project, jobs: Jobs, site: Site) -> None:
    """The users and accounts of these jobs exist, with equal shares, and the accounting has their past."""
    who = sorted({*associations(jobs), *((job.account, job.user) for job in site.past)})
    uid = {user: FIRST_UID + number for number, user in enumerate(dict.fromkeys(user for _, user in who))}
    for service in ("ctl", "scale"):
        entries = "".join(f"{user}:x:{number}:{number}::/tmp:/bin/bash\n" for user, number in uid.items())
        project.execute("cat >>/etc/passwd", service=service, text_input=entries)
    lines = [f"add account {','.join(sorted({account for account, _ in who}))} cluster=testbed"]
    lines += [f"add user {user} account={account} cluster=testbed" for account, user in who]
    project.execute("sacctmgr -i >/dev/null", text_input="\n".join(lines) + "\n")
    if not site.past:
        return
    now = time.time()
    rows = ",".join(
        f"({job.job_id},'{job.account}','{job.user}',{uid[job.user]},'{job.partition}',{job.cpus},{job.gpus},"
        f"{job.time_limit / MINUTE:.0f},{job.run_time:.0f},{now + job.end:.0f})"
        for job in site.past
    )
    sql = f"""
        set sql_mode = '';
        create temporary table past (id int, account text, user text, uid int, part text, cpus int, gpus int,
            minutes int, ran int, ends bigint);
        insert into past values {rows};
        insert into testbed_job_table ({COLUMNS})
            select id, id_assoc, uid, uid, account, part, 'past', cpus, 1, minutes, {COMPLETED},
                ends - ran, ends - ran, ends - ran, ends, tres, tres
            from (select past.*, id_assoc, concat('1=', cpus, ',4=1,', tres_table.id, '=', gpus) as tres
                from past join testbed_assoc_table as a on a.acct = past.account and a.user = past.user
                join tres_table on type = 'gres' and name = 'gpu') as of;
    """  # noqa: S608 - all values are our own
    project.execute("mariadb slurm_acct_db", service="dbd", text_input=sql)
