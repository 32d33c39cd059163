"""The jobs of an A/B, drawn from a seed before any cluster is there, and the Slurm and the arms that they are given to.

Time is compressed: what takes a user hours takes seconds here. A second of a run stands for a quarter of a minute as
far as time limits are concerned, and Slurm's own slow clocks (age, half-life) are as short against a run as their
defaults of a week are against the ten days of the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from replay import LEAST_MEM, MINUTE, Jobs, Kind
from testbed import USERS, TestbedError

from rltuned.decide.rank.multifactor import Association, Weights
from rltuned.lab.evaluate.evaluation_settings import AGAIN
from rltuned.simulate.workload.jobs import Source, workload
from rltuned.slurm.facts import priority_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rltuned.core.ended import EndedJob

Floats = np.ndarray[Any, np.dtype[np.float64]]

GPUS: Final = 13
"""Of the testbed's profile "paper"."""
NODES: Final = 5
"""Likewise."""
PARTITION: Final = "gpu"
EXCLUSIVE: Final = "excl"
"""Partition in which a job takes its nodes whole, as where neither jobs nor DefMemPerCPU say how much memory."""
ACCOUNTS: Final = {"alice": "physics", "bob": "physics", "carol": "biology", "dave": "biology"}
QOS: Final = {"low": 0.0, "normal": 50.0, "high": 100.0}
"""Priorities, as docker-slurm-testbed/image/testbed-accounts sets them."""
REGISTERED: Final = (
    *((account, user) for user, account in ACCOUNTS.items()),
    *(("ops", "rltuned"), ("ops", "visitor"), ("capped", "bob"), ("root", "root")),
)
"""Account and user of all associations, likewise."""

CLUSTER: Final[Mapping[str, Any]] = {
    "pools": [
        {"name": "k80-1", "nodes": 1, "gpus_per_node": 2, "gpu_type": "k80", "cpus": 28, "mem_mib": 128_000},
        {"name": "k80-2", "nodes": 1, "gpus_per_node": 2, "gpu_type": "k80", "cpus": 28, "mem_mib": 128_000},
        {"name": "m40-1", "nodes": 1, "gpus_per_node": 1, "gpu_type": "m40", "cpus": 28, "mem_mib": 128_000},
        {"name": "p100-1", "nodes": 1, "gpus_per_node": 4, "gpu_type": "p100", "cpus": 56, "mem_mib": 256_000},
        {"name": "p100-2", "nodes": 1, "gpus_per_node": 4, "gpu_type": "p100", "cpus": 56, "mem_mib": 256_000},
    ],
    "partitions": [{"name": "gpu", "default": True, "oversubscribe": "NO", "max_time": "7-00:00:00"}],
}
"""The profile "paper" as `replay.read_cluster` reads it, as far as these jobs go: to simulate without the testbed."""
KINDS: Final = (
    Kind("1 GPU of any type", 38, 1, cpus=2, mem=8_000),
    Kind("2 GPUs of any type", 8, 2, cpus=4, mem=16_000),
    Kind("1 P100", 10, 1, "p100", cpus=2, mem=8_000),
    Kind("2 P100", 8, 2, "p100", cpus=4, mem=32_000),
    Kind("4 P100", 4, 4, "p100", cpus=8, mem=64_000),
    Kind("1 K80", 6, 1, "k80", cpus=2, mem=8_000),
    Kind("2 K80", 5, 2, "k80", cpus=4, mem=32_000),
    Kind("1 M40", 2, 1, "m40", cpus=2, mem=8_000),
    Kind("2 P100 on each of 2 nodes", 3, 4, "p100", nodes=2, cpus=4, mem=32_000),
    Kind("4 P100 on each of 2 nodes", 3, 8, "p100", nodes=2, cpus=8, mem=64_000),
    Kind("6 P100 on any nodes", 1, 6, "p100", nodes=0),
    Kind("CPUs only", 12, 0, cpus=8, mem=16_000),
)
RERUNS: Final = 20
"""Jobs of one script, in the mean."""
LEAST_SCRIPTS: Final = 2
SESSION: Final = 4.0
"""Runs of a script that follow each other closely, in the mean."""
GAP: Final = 2.0
"""Seconds between them, in the mean."""
SPREAD: Final = 1.2
"""σ of ln run time between scripts."""
REPEAT: Final = 0.25
"""The same between two runs of one script."""
CRASHES: Final = 0.08
"""Share of the runs that end early."""
SHORTEST: Final = 2.0
"""Seconds: two passes of Slurm's."""
LONGEST: Final = 0.15
"""Of the time in which jobs arrive."""
ARRIVING: Final = 0.75
"""Share of a run's planned minutes in which jobs arrive; in the rest the queue empties."""
WAVES: Final = 3
"""Busy times of the day."""
HEIGHT: Final = 0.6
"""Share of the mean by which the rate of submission goes up and down."""
LIMIT_MINUTES: Final = 0.25
"""Minutes of a limit that stand for a second of a run: limits are whole minutes, and most runs take seconds."""
OVER_ASKING: Final = 1.2
"""σ of ln(limit / run time), half-normal, as `rltuned.simulate.workload.simulated_estimates` draws limits."""
MOST_MINUTES: Final = 600
SHOWN: Final = 12
"""Users and accounts that a report lists, at most."""


def draw(jobs: int, seed: int, minutes: float, load: float, *, exclusive: bool = False) -> Jobs:
    """`jobs` jobs that arrive in three quarters of so many minutes.

    Args:
        jobs: how many.
        seed: of everything that is drawn.
        minutes: that a run is planned to take.
        load: GPU-seconds of all jobs over those of the cluster while jobs arrive.
        exclusive: a node runs one job; `load` is of nodes.

    Raises:
        TestbedError: there are fewer jobs than scripts.
    """
    rng = np.random.default_rng(seed)
    span = ARRIVING * minutes * MINUTE
    kind, script = _scripts(jobs, rng)
    gpus = np.array([KINDS[of].gpus for of in kind])
    nodes = np.array([KINDS[of].nodes for of in kind])
    taken, there = (np.where(nodes > 0, nodes, 2), NODES) if exclusive else (gpus, GPUS)
    run_time = _run_times(kind, script, taken, load * there * span, LONGEST * span, rng)
    submit = _submissions(script, span, rng)
    limit = _limits(script, run_time, rng)
    owner = rng.permutation(script.max() + 1) % len(USERS)
    qos = _qos(script.max() + 1, rng)
    spread = np.maximum(nodes, 1)
    order = np.argsort(submit, kind="stable")
    user = [USERS[owner[of]] for of in script]
    made = workload(
        Source(name=f"testbed A/B, seed {seed}"),
        (submit - submit.min())[order],
        run_time[order],
        gpus[order],
        nodes=nodes[order],
        cpus=(np.where(nodes > 0, [KINDS[of].cpus for of in kind], gpus) * spread)[order],
        mem=np.maximum(np.array([KINDS[of].mem for of in kind], dtype=np.float64) * spread, LEAST_MEM)[order],
        time_limit=limit[order],
        gpu_type=[KINDS[kind[row]].gpu_type for row in order],
        user=[user[row] for row in order],
        account=[ACCOUNTS[user[row]] for row in order],
        qos=[qos[script[row]] for row in order],
        partition=EXCLUSIVE if exclusive else PARTITION,
    )
    return Jobs(made, made.time_limit.copy(), tuple(KINDS[kind[row]].name for row in order), {})


def _scripts(jobs: int, rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(N,) kind and script of each job. Shares of the kinds do not depend on luck; how popular a script is does."""
    weight = np.array([kind.weight for kind in KINDS], dtype=np.float64)
    count = np.floor(weight / weight.sum() * jobs).astype(int)
    count[0] += jobs - count.sum()
    kinds, scripts, first = [], [], 0
    for kind, of_kind in enumerate(count):
        several = max(LEAST_SCRIPTS, round(of_kind / RERUNS))
        if of_kind < several:
            message = f"{jobs} jobs are too few: there are {len(KINDS)} kinds of at least {LEAST_SCRIPTS} scripts each"
            raise TestbedError(message)
        popular = rng.gamma(2.0, size=several)
        of = np.concatenate((np.arange(several), rng.choice(several, of_kind - several, p=popular / popular.sum())))
        kinds.append(np.full(of_kind, kind))
        scripts.append(first + of)
        first += several
    return np.concatenate(kinds), np.concatenate(scripts)


def _run_times(
    kind: np.ndarray[Any, Any],
    script: np.ndarray[Any, Any],
    taken: np.ndarray[Any, Any],
    work: float,
    longest: float,
    rng: np.random.Generator,
) -> Floats:
    """(N,) seconds: heavy-tailed between scripts, alike between two runs of one; `work` seconds of what is `taken`."""
    typical = np.zeros(script.max() + 1)
    for of in np.unique(kind):
        own = np.unique(script[kind == of])
        # One of each part of the distribution, so that every kind has short and long scripts.
        at = (rng.permutation(len(own)) + rng.uniform(size=len(own))) / len(own)
        typical[own] = np.exp(SPREAD * np.array([NormalDist().inv_cdf(part) for part in at]))
    run_time = typical[script] * rng.lognormal(0.0, REPEAT, len(script))
    crashed = rng.uniform(size=len(script)) < CRASHES
    run_time[crashed] *= rng.uniform(0.05, 0.5, crashed.sum())
    for of in np.unique(kind):  # no type of GPU is overloaded by chance
        run_time[kind == of] /= run_time[kind == of].mean()
    for _ in range(50):  # what is cut off at both ends must be made up for
        run_time = np.clip(run_time * work / float(run_time @ taken), SHORTEST, longest)
    return np.asarray(np.round(run_time, 2))


def _submissions(script: np.ndarray[Any, Any], span: float, rng: np.random.Generator) -> Floats:
    """(N,) seconds: each script is run in sessions, which begin more often in busy times."""
    grid = np.linspace(0.0, span, 1000)
    rate = np.cumsum(1.0 + HEIGHT * np.sin(2.0 * math.pi * WAVES * grid / span))
    submit = np.zeros(len(script))
    for of in range(script.max() + 1):
        rows = np.flatnonzero(script == of)
        begins = np.concatenate(([True], rng.uniform(size=len(rows) - 1) < 1.0 / SESSION))
        moment = np.interp(rng.uniform(0.0, rate[-1], begins.sum()), rate, grid)
        since = np.cumsum(rng.exponential(GAP, len(rows)))
        start = since[begins][np.cumsum(begins) - 1]
        submit[rows] = np.minimum(moment[np.cumsum(begins) - 1] + since - start, span)
    return np.asarray(np.round(submit, 3))


def _limits(script: np.ndarray[Any, Any], run_time: Floats, rng: np.random.Generator) -> Floats:
    """(N,) seconds, whole minutes: users ask for more than they need, and no two scripts ask for the same."""
    scripts = script.max() + 1
    typical = np.array([np.median(run_time[script == of]) for of in range(scripts)])
    most = np.array([run_time[script == of].max() for of in range(scripts)])
    asked = LIMIT_MINUTES * typical * np.exp(OVER_ASKING * np.abs(rng.standard_normal(scripts)))
    asked = np.clip(np.maximum(np.ceil(asked), np.ceil(most / MINUTE) + 1.0), 1.0, MOST_MINUTES)
    taken: set[int] = set()
    minutes = np.zeros(scripts)
    for of in np.argsort(asked, kind="stable"):
        wanted = int(asked[of])
        while wanted in taken:
            wanted += 1
        taken.add(wanted)
        minutes[of] = wanted
    return np.asarray(minutes[script] * MINUTE)


def _qos(scripts: int, rng: np.random.Generator) -> list[str]:
    """Of each script."""
    return [str(name) for name in rng.choice(("low", "normal", "high"), scripts, p=(0.1, 0.8, 0.1))]


# --- Slurm, and the arms -----------------------------------------------------------------------

WEIGHT: Final = 10_000
"""Of every factor of multifactor that has one weight: the paper's "equal weights"."""
LONG_TIME: Final = 0.7
"""PriorityMaxAge and PriorityDecayHalfLife over the minutes of a run: the defaults' seven days over the paper's ten."""
PARAMETERS: Final = (
    "sched_interval=1,sched_min_interval=0,bf_interval=1,bf_resolution=1,bf_window=1440,bf_continue,batch_sched_delay=0,"
    "default_queue_depth=2000,bf_max_job_test=2000,partition_job_depth=2000"
)
"""The testbed's, but for bf_window: limits are longer than its hour."""
MULTIFACTOR: Final = "multifactor"
"""The arm that the others are compared with: no daemon."""


def long_minutes(minutes: float) -> int:
    """PriorityMaxAge and PriorityDecayHalfLife, whole minutes."""
    return max(round(LONG_TIME * minutes), 1)


def slurm_conf(minutes: float) -> dict[str, str]:
    """Of every arm."""
    weights = dict.fromkeys(("Age", "FairShare", "JobSize", "Partition", "QOS"), str(WEIGHT))
    slow = str(long_minutes(minutes))
    return {
        **{f"PriorityWeight{name}": value for name, value in weights.items()},
        "PriorityMaxAge": slow,
        "PriorityDecayHalfLife": slow,
        "SchedulerParameters": PARAMETERS,
    }


@dataclass(frozen=True)
class Site:
    """The Slurm that the jobs of a run are given to."""

    minutes: float
    """That a run is planned to take."""
    conf: Mapping[str, str]
    """slurm.conf, as far as it differs from the testbed's."""
    factor: float
    """Seconds that a second of a run stands for."""
    past: tuple[EndedJob, ...] = ()
    """Jobs that the accounting knows; ends are seconds before the first submission."""
    scale: str = ""
    """Nodes and GPUs of each ("8x8"); "": the profile "paper"."""

    def others(self, jobs: Jobs) -> list[Association]:
        """Associations that submit nothing. They take places in the fair share."""
        own = associations(jobs)
        more = list(dict.fromkeys((*REGISTERED, *((job.account, job.user) for job in self.past))))
        accounts = dict.fromkeys(account for account, _ in more)
        submitting = {account for account, _ in own} | {"root"}
        return [
            *(Association(account) for account in accounts if account not in submitting),
            *(Association(*who) for who in more if who not in own),
        ]


def synthetic(minutes: float) -> Site:
    """Of the jobs that `draw` draws."""
    return Site(minutes, slurm_conf(minutes), LIMIT_MINUTES * MINUTE)


def associations(jobs: Jobs) -> set[tuple[str, str]]:
    """Account and user of all that submit."""
    return set(zip(jobs.workload.account.texts(), jobs.workload.user.texts(), strict=True))


def weights_text(conf: Mapping[str, str]) -> str:
    """As `rltuned evaluate --weights` takes them."""
    return ",".join(f"{name}={value:.15g}" for name, value in priority_weights(conf).items())


def weights(conf: Mapping[str, str]) -> Weights:
    """Of these lines of slurm.conf, for the simulator; all partitions have the same priority."""
    return Weights.parse(weights_text(conf))


@dataclass(frozen=True)
class Arm:
    """A way to order the queue."""

    name: str
    sections: Mapping[str, Mapping[str, Any]] | None
    """What differs from the daemon's defaults; None: no daemon."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Its own lines of slurm.conf."""

    def configuration(self, interval: float) -> dict[str, Mapping[str, Any]]:
        """Of its daemon."""
        return {
            "cycle": {"interval": interval, "stage": "active"},
            # A compressed week is half an hour.
            "estimates": {"source": "history", "refresh": max(2.0 * interval, 10.0)},
            **(self.sections or {}),
        }


FREE: Final = {"lend": {"share": 1.0, "most": 256}, "placement": {"apply": "off"}}
"""What an order gains is asked of the drawn jobs: they lend all that they have waited."""


TUNED: Final = "tuned"
"""The arm of Slurm alone with what `rltuned tune` finds, …"""
ON_TUNED: Final = "rl-tuned"
"""… and that of rltuned on top; their lines come with the window."""


def _arms(*arms: Arm) -> dict[str, Arm]:
    return {arm.name: arm for arm in arms}


def _arm(name: str, policy: str, more: Mapping[str, Mapping[str, Any]]) -> Arm:
    return Arm(name, {"policy": {"name": policy}, **more})


ARMS: Final = _arms(
    Arm(MULTIFACTOR, None),
    _arm("saf", "saf", FREE),
    _arm("rl", "model", FREE),
)
TRACE_ARMS: Final = _arms(
    Arm(MULTIFACTOR, None),
    Arm(AGAIN, None),
    _arm("saf", "saf", {}),
    _arm("rl", "model", {}),
    Arm(TUNED, None),
    _arm(ON_TUNED, "model", {}),
)
"""On windows of traces: what a site gets by default, and what chance does."""


def tuned(lines: Iterable[str], conf: Mapping[str, str]) -> dict[str, str]:
    """What differs from `conf` with these lines of slurm.conf; SchedulerParameters one by one.

    Raises:
        TestbedError: a line that is none.
    """
    names, found = {name.lower(): name for name in conf}, dict[str, str]()
    for line in filter(None, (line.partition("#")[0].strip() for line in lines)):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name.isidentifier():
            message = f"tuned: not a line of slurm.conf: {line}"
            raise TestbedError(message)
        found[names.get(name.lower(), name)] = value
    if of_tuned := found.get("SchedulerParameters"):
        both = [part.partition("=") for of in (conf["SchedulerParameters"], of_tuned) for part in of.split(",")]
        merged = {name: equals + value for name, equals, value in both if name != "..."}
        found["SchedulerParameters"] = ",".join(name + value for name, value in merged.items())
    return found


def chosen(names: str, arms: Mapping[str, Arm] = ARMS) -> list[Arm]:
    """Those of `arms` in a comma list, multifactor first; "": all.

    Raises:
        TestbedError: one that does not exist, or none but multifactor.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(arms)
    if unknown := [name for name in wanted if name not in arms]:
        message = f"there is no arm {unknown[0]!r}; there are {', '.join(arms)}"
        raise TestbedError(message)
    found = [arm for name, arm in arms.items() if name in wanted or name == MULTIFACTOR]
    if len(found) < 2:
        message = "nothing to compare: name an arm besides multifactor"
        raise TestbedError(message)
    return found


def sizes(jobs: Jobs) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
    """(N,) which jobs are of each size. A job that asks for several nodes is of two."""
    gpus, several = jobs.workload.gpus, jobs.workload.nodes > 1
    found = {f"{n} GPU{'s' if n > 1 else ''}": gpus == n for n in (1, 2, 4)}
    return {"CPUs only": gpus == 0, **found, "6 and more GPUs": gpus >= 6, "several nodes": several}


def owned(jobs: Jobs, of: str) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
    """(N,) which jobs are whose: of each "user" or "account", those with the most jobs."""
    texts = np.array(getattr(jobs.workload, of).texts())
    names, count = np.unique(texts[jobs.warm :], return_counts=True)
    most = names[np.sort(np.argsort(-count, kind="stable")[:SHOWN])]
    return {str(name): texts == name for name in most}


def as_rows(jobs: Jobs, described: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each job for the JSON."""
    small = jobs.workload
    return [
        {
            **what,
            "submit": float(small.submit_time[row]),
            "account": small.account.value(row),
            "qos": small.qos.value(row),
        }
        for row, what in enumerate(described)
    ]


COLUMNS: Final = ("cpus", "mem", "time_limit", "gpu_type", "user", "account", "qos", "partition")


def from_rows(rows: Sequence[Mapping[str, Any]], name: str, warm: int = 0) -> Jobs:
    """The jobs that `as_rows` wrote."""

    def column(key: str) -> list[Any]:
        return [row[key] for row in rows]

    made = workload(
        Source(name=name),
        column("submit"),
        column("run_time"),
        column("gpus"),
        job_id=column("job_id"),
        nodes=column("nodes_asked"),
        **{key: column(key) for key in COLUMNS},
    )
    return Jobs(made, np.array(column("estimate"), dtype=np.float64), tuple(column("class")), {}, warm)
