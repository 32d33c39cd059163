"""A Slurm of any size that prints: stand-ins of its programs, for `measures.scale`.

The programs are shell scripts that print prepared files, in the form of a release (as in `tests/recorded`); what
``scontrol`` gets on its standard input is carried out by the process that made them, which then prints the queue anew.
"""

import os
import pwd
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rltuned.cluster.changes import Applied
from rltuned.cluster.tables import Ints
from rltuned.daemon.claims import Entry
from rltuned.slurm.commands import EXCLUSIVE_SINCE, SEPARATOR

NOTHING: Final = "(null)"
RELEASES: Final[Mapping[str, str]] = {"22.05": "22.05.8", "24.11": "24.11.5", "26.05": "26.05.5"}

_DAY: Final = 86_400
_KINDS: Final[Mapping[str, tuple[int, float]]] = {
    "a100": (8, 0.3),
    "v100": (4, 0.3),
    "p100": (4, 0.2),
    "t4": (2, 0.1),
    "cpu": (0, 0.1),
}
"""GPUs of a node, and share of all nodes."""
_CPUS: Final = 64

_SCONTROL: Final = """case "$*" in
-V) exec cat version ;;
ping) exec cat ping ;;
"show config") exec cat config ;;
*"show node") exec cat nodes ;;
*"show partition") exec cat partitions ;;
"") cat >updates && echo update >ask && read -r answer <told ;;
*) echo "no such command: $*" >&2; exit 1 ;;
esac"""
_SQUEUE: Final = """case "$*" in
*UserName*) exec cat jobs ;;
*StateCompact*) exec cat status ;;
*) exec cat excluded ;;
esac"""
_PROGRAMS: Final[Mapping[str, str]] = {
    "scontrol": _SCONTROL,
    "squeue": _SQUEUE,
    "sprio": "exec cat site-factors",
    "sdiag": "exec cat diagnostics",
    "sacctmgr": "exec cat privilege",
}


class _Job(NamedTuple):
    """What does not change of a job."""

    job_id: int
    user: str
    account: str
    partition: str
    qos: str
    reason: str
    """"None" of a running one."""
    tasks: str
    submit: int
    eligible: int | str
    ends: int | str
    """"N/A" while it waits."""
    limit: str
    nodes: int
    gpus: int
    kind: str
    """"" : any."""
    cpus: int
    mem: int
    """MB."""
    feature: str
    listed: str
    """Nodes asked for by name."""
    held: str
    """Nodes that it runs on."""
    excluded: str
    dependency: str
    nice: int

    @property
    def waits(self) -> bool:
        """Whether it is pending."""
        return not self.held

    @property
    def under_multifactor(self) -> bool:
        """Whether sprio lists it."""
        return self.waits and self.reason not in {"Dependency", "JobHeldUser", "BeginTime"}


class PrintingSlurm:
    """A queue and its cluster. The same for the same arguments, but for the time of day.

    A busy cluster of five kinds of nodes, in partitions of one kind and two of all GPUs; nine of ten nodes run
    something. Of the queue some jobs are arrays, for several partitions, held, dependent, not yet eligible or at a
    limit; thousands of different requests, dozens of limits, hundreds of node lists. Three of ten pending jobs carry a
    site factor of an earlier daemon's.
    """

    def __init__(self, directory: Path, jobs: int, nodes: int, release: str, seed: int, *, limited: bool) -> None:
        """`directory` gets the programs and what they print. `limited`: Slurm's RPC limiter is on."""
        self.directory, self.release = directory, RELEASES[release]
        self._rng = np.random.default_rng(seed)
        self.now = int(time.time())
        self._exclusive = tuple(int(part) for part in release.split(".")) >= EXCLUSIVE_SINCE
        self._kinds = [kind for kind, (_, share) in _KINDS.items() for _ in range(max(1, round(share * nodes)))]
        numbers: Counter[str] = Counter()
        self._names = []
        for kind in self._kinds:
            numbers[kind] += 1
            self._names.append(f"{kind}-{numbers[kind]:04d}")
        running = self._running()
        self.jobs = [*running, *self._pending(jobs, first=3 * len(running) + 1)]
        self._row = {job.job_id: row for row, job in enumerate(self.jobs)}
        self.users = sorted({job.user for job in self.jobs})
        self._base = self._priorities()
        self.factor = np.zeros(len(self.jobs), dtype=np.int64)
        # Of jobs that the daemon manages now, too: what it would have to give back is no part of a cycle.
        may = [
            job.waits and job.reason == "Priority" and not job.listed + job.excluded and job.feature == NOTHING
            for job in self.jobs
        ]
        carries = np.array(may) & (self._rng.random(len(self.jobs)) < 0.3)
        self.factor[carries] = -self._rng.integers(1, 4, int(carries.sum()))
        self._share = ["NO" if self._exclusive else "OK"] * len(self.jobs)
        self._rows = [self._fixed(job) for job in self.jobs]
        self._print_once(limited=limited)
        self.print_queue()

    # --- what there is

    def _running(self) -> list[_Job]:
        """Jobs on nine of ten nodes, some on several; prints the nodes."""
        rng, jobs = self._rng, list[_Job]()
        gpus_used, cpus_used = [0] * len(self._names), [0] * len(self._names)
        at = 0
        while at < len(self._names):
            name, kind = self._names[at], self._kinds[at]
            gpus, draw, width = _KINDS[kind][0], rng.random(), 1
            parts = each = cpus = 0
            if draw < 0.05:
                width = min(int(rng.integers(2, 9)), self._kinds[at:].count(kind))
                if width > 1:
                    name = f"{kind}-[{name[-4:]}-{self._names[at + width - 1][-4:]}]"
            if draw < 0.5:
                parts, each, cpus = 1, gpus, 32
            elif draw < 0.9:
                parts = int(rng.integers(2, 5))
                each, cpus = gpus // parts, 8
            for _ in range(parts):
                jobs.append(self._started(3 * len(jobs) + 1, name, width, width * each, kind, width * cpus))
            for node in range(at, at + width):
                gpus_used[node], cpus_used[node] = parts * each, parts * cpus
            at += width
        lines = [self._node(*each) for each in zip(self._names, self._kinds, gpus_used, cpus_used, strict=True)]
        self._put("nodes", "".join(lines))
        return jobs

    def _started(self, job_id: int, nodes: str, width: int, gpus: int, kind: str, cpus: int) -> _Job:
        submit = self.now - int(self._rng.integers(600, _DAY))
        ends = self.now + int(self._rng.integers(60, 2 * _DAY))
        user, part = f"user{self._rng.integers(100)}", "gpu" if gpus else "cpu"
        return _Job(job_id, user, "acct1", part, "normal", "None", "N/A", submit, submit, ends, "2-00:00:00", width,
                    gpus, kind if gpus else "", cpus, cpus * 4000, NOTHING, "", nodes, "", "(", 0)  # fmt: skip

    def _node(self, name: str, kind: str, gpus: int, cpus: int) -> str:
        every = _KINDS[kind][0]
        has = f",gres/gpu={every},gres/gpu:{kind}={every}" if every else ""
        given = f"cpu={cpus},mem={cpus * 4000}M" if cpus else ""
        given += f",gres/gpu={gpus},gres/gpu:{kind}={gpus}" if gpus else ""
        used = f"gpu:{kind}:{gpus}(IDX:{f'0-{gpus - 1}' if gpus else 'N/A'})" if every else NOTHING
        state = "IDLE" if not cpus else "ALLOCATED" if cpus == _CPUS else "MIXED"
        return (
            f"NodeName={name} Arch=x86_64 CoresPerSocket=32  CPUAlloc={cpus} CPUEfctv={_CPUS} CPUTot={_CPUS} "
            f"CPULoad=5.13 AvailableFeatures={kind},ib ActiveFeatures={kind},ib "
            f"Gres={f'gpu:{kind}:{every}' if every else NOTHING} GresDrain=N/A GresUsed={used} "
            f"NodeAddr={name} NodeHostName={name} Version={self.release} "
            f"OS=Linux 6.12.0 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=512000 AllocMem={cpus * 4000} FreeMem=196230 "
            f"Sockets=2 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=400000 Weight=1 Owner=N/A MCS_label=N/A "
            f"Partitions={kind},{'gpu,share' if every else 'all'}  BootTime=1795240746 SlurmdStartTime=1795244644 "
            f"LastBusyTime=1795244644 ResumeAfterTime=None CfgTRES=cpu={_CPUS},mem=500G,billing={_CPUS}{has} "
            f"AllocTRES={given} CurrentWatts=0 AveWatts=0\n"
        )

    def _pending(self, count: int, first: int) -> list[_Job]:
        rng, now = self._rng, self.now
        ids = first + np.cumsum(rng.integers(1, 4, count))
        submit = np.sort(now - rng.integers(60, 5 * _DAY, count))
        users = rng.zipf(1.3, count) % max(2, count // 50)  # few submit most
        limits = [f"{hours}:00:00" for hours in range(1, 24)] + ["1-00:00:00", "2-00:00:00", "7-00:00:00"]
        columns = zip(
            ids.tolist(),
            submit.tolist(),
            users.tolist(),
            rng.choice(limits, count).tolist(),
            rng.choice(["normal", "high", "low"], count, p=[0.8, 0.1, 0.1]).tolist(),
            rng.choice([0, 1, 2, 4, 8, 16, 32], count, p=[0.1, 0.4, 0.15, 0.15, 0.12, 0.05, 0.03]).tolist(),
            rng.choice(["a100", "v100", "p100", "t4", ""], count, p=[0.2, 0.15, 0.1, 0.05, 0.5]).tolist(),
            rng.integers(1, 9, count).tolist(),
            rng.integers(1, 65, count).tolist(),
            rng.choice(["Priority", "Dependency", "JobHeldUser", "BeginTime", "QOSMaxGRESPerUser"], count,
                       p=[0.77, 0.05, 0.02, 0.01, 0.15]).tolist(),
            rng.choice(["", "array", "several", "feature", "listed", "excluding", "nice"], count,
                       p=[0.79, 0.05, 0.05, 0.05, 0.005, 0.005, 0.05]).tolist(),
            strict=True,
        )  # fmt: skip
        jobs, has = list[_Job](), Counter(self._kinds)
        for job_id, came, user, limit, qos, wanted, kind, cpus, mem, reason, special in columns:
            per_node = _KINDS[kind or "a100"][0]  # who takes any kind finds most on these
            nodes, at = min(max(1, wanted // per_node), has[kind or "a100"]), job_id % len(self._names)
            gpus = min(wanted, nodes * per_node)
            eligible: int | str = now + 3600 if reason == "BeginTime" else came
            jobs.append(
                _Job(
                    job_id=job_id,
                    user=f"user{user}",
                    account=f"acct{user % 97}",
                    partition="cpu" if not gpus else "gpu,share" if special == "several" else "gpu",
                    qos=qos,
                    reason=reason,
                    tasks="0-99%5" if special == "array" else "N/A",
                    submit=came,
                    eligible="N/A" if reason in {"Dependency", "JobHeldUser"} else eligible,
                    ends="N/A",
                    limit=limit,
                    nodes=nodes,
                    gpus=gpus,
                    kind=kind if gpus else "",
                    cpus=cpus * nodes,
                    mem=mem * 1000 * nodes,
                    feature=("ib", "a100|v100", "ib&a100")[job_id % 3] if special == "feature" else NOTHING,
                    listed=self._names[at] if special == "listed" else "",
                    held="",
                    excluded=",".join(self._names[at : at + 1 + job_id % 3]) if special == "excluding" else "",
                    dependency="a" if reason == "Dependency" else "(",
                    nice=100 if special == "nice" else 0,
                )
            )
        return jobs

    def _priorities(self) -> Ints:
        """Age, fair share, QOS and size, less nice; 0 of a held job. Many are equal."""
        fair = dict(zip(self.users, self._rng.integers(0, 10_001, len(self.users)).tolist(), strict=True))
        bonus = {"low": 0, "normal": 5000, "high": 10_000}
        values = [
            0
            if job.reason == "JobHeldUser"
            else max(
                int(min((self.now - job.submit) / (7 * _DAY), 1.0) * 10_000)
                + fair[job.user]
                + bonus[job.qos]
                + min(job.gpus, 8)
                - job.nice,
                1,
            )
            for job in self.jobs
        ]
        return np.array(values, dtype=np.int64)

    # --- what is printed

    def _fixed(self, job: _Job) -> tuple[str, str, str, str, str]:
        """Of the rows of jobs, status, sprio and excluded: what does not change, as far as there is a part in front of
        it.
        """
        gres = "gres:gpu" if self.release.startswith("22.05") else "gres/gpu"
        of_kind = f":{job.kind}" if job.kind else ""
        tres = f"cpu={job.cpus},mem={job.mem}M,node={job.nodes},billing={job.cpus}"
        if job.gpus:
            tres += f",gres/gpu={job.gpus}" + (f",gres/gpu:{job.kind}={job.gpus}" if job.kind else "")
        state = "PD" if job.waits else "R"
        start = "N/A" if job.waits else job.submit + 30
        asked = f"{gres}{of_kind}:{max(1, job.gpus // job.nodes)}" if job.gpus else "N/A"
        cells = (job.job_id, job.job_id, job.tasks, "N/A", job.user, job.account, job.partition, job.qos, NOTHING,
                 state, job.reason, job.submit, job.eligible, start, job.ends, job.limit, job.nodes, job.nodes,
                 job.cpus, f"{job.mem}M", 0, tres, "N/A", asked, "N/A", "N/A", "N/A", job.feature, job.listed,
                 job.held, job.dependency, "N/A")  # fmt: skip
        request = (job.account, job.partition, job.qos, job.limit, job.nodes, job.cpus, "N/A", asked, "N/A", "N/A")
        terms = f"cpu={job.cpus}" + (f",gres/gpu={10 * job.gpus}" if job.gpus else "")
        return (
            _row(*cells),
            _row(job.job_id, job.job_id, job.tasks, state, job.submit),
            _row(terms, job.nice, 310, 10, 5, 0, 5000, 0) + "\n",
            _row(job.reason, *request)[: -len(SEPARATOR)],
            _row(job.job_id, job.job_id, job.tasks, job.excluded) + "\n",
        )

    def print_queue(self) -> None:
        """The answers of squeue and sprio, as far as a write or a minute changes them."""
        shown = np.where(self._base > 0, np.maximum(self._base + self.factor, 1), 0).tolist()
        end = SEPARATOR + ("NO" + SEPARATOR if self._exclusive else "") + "\n"
        jobs, status, sprio = [], [], []
        each = zip(self.jobs, self._rows, shown, self.factor.tolist(), self._share, strict=True)
        for job, (row, brief, terms, asked, _), value, factor, share in each:
            changes = f"{value}{SEPARATOR}{job.nice}{SEPARATOR}{share}"
            jobs.append(row + changes + end)
            status.append(f"{brief}{value}{SEPARATOR}{share}{SEPARATOR}{asked}{end}")
            if job.under_multifactor:
                line = f"{job.job_id}{SEPARATOR}{factor}{SEPARATOR}{value}{SEPARATOR}{terms}"
                sprio.append(line * (1 + job.partition.count(",")))
        self._put("jobs", "".join(jobs))
        self._put("status", "".join(status))
        self._put("site-factors", "".join(sprio))

    def _print_once(self, *, limited: bool) -> None:
        settings = {
            "AccountingStorageTRES": "cpu,mem,node,billing,gres/gpu",
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "ClusterName": "printed",
            "PriorityCalcPeriod": "00:01:00",
            "PriorityType": "priority/multifactor",
            "SchedulerParameters": "bf_continue",
            "SchedulerType": "sched/backfill",
            "SlurmUser": f"slurm({os.geteuid()})",
            "SlurmctldParameters": "rl_enable" if limited else NOTHING,
            "SLURM_VERSION": self.release,
        }
        self._put("config", "".join(f"{key} = {value}\n" for key, value in settings.items()))
        self._put("privilege", f"{pwd.getpwuid(os.geteuid()).pw_name}|Operator\n")
        self._put("version", f"slurm-wlm {self.release}\n")
        self._put("ping", "Slurmctld(primary) at ctl is UP\n")
        running = sum(not job.waits for job in self.jobs)
        counts = f"Jobs pending:   {len(self.jobs) - running}\nJobs running:   {running}\n"
        self._put("diagnostics", "Server thread count:  3\nAgent queue size:     0\n" + counts)
        self._put("excluded", "".join(excluded for *_, excluded in self._rows))
        spans = {kind: f"{kind}-[0001-{self._kinds.count(kind):04d}]" for kind in _KINDS}
        gpu = ",".join(span for kind, span in spans.items() if _KINDS[kind][0])
        parts = {"gpu": (gpu, "NO"), "share": (gpu, "YES:4"), **{kind: (span, "NO") for kind, span in spans.items()}}
        self._put(
            "partitions",
            "".join(
                f"PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO "
                f"QoS=N/A MaxNodes=UNLIMITED MaxTime=7-00:00:00 MinNodes=0 LLN=NO Nodes={listed} "
                f"PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe={share} "
                "OverTimeLimit=NONE State=UP\n"
                for name, (listed, share) in parts.items()
            ),
        )
        for name, does in _PROGRAMS.items():
            self._put(name, f'#!/bin/sh\nPATH=/usr/bin:/bin\ncd "${{0%/*}}" || exit 1\n{does}\n')
            (self.directory / name).chmod(0o755)
        for pipe in ("ask", "told"):
            os.mkfifo(self.directory / pipe)

    def _put(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="ascii")

    # --- what happens

    def left_behind(self) -> list[Entry]:
        """What the journal of the earlier daemon says."""
        then = self.now - 600.0
        return [
            Entry(Applied(self.jobs[row].job_id, self.jobs[row].submit, int(self.factor[row])), touched=then)
            for row in np.flatnonzero(self.factor).tolist()
        ]

    def update(self, text: str) -> None:
        """Carry out what ``scontrol`` got on its standard input."""
        for line in text.splitlines():
            words = dict(word.split("=", 1) for word in line.split()[1:])
            row = self._row[int(words.pop("JobId"))]
            for field, value in words.items():
                if field == "SiteFactor":
                    self.factor[row] = int(value)
                elif field == "OverSubscribe":
                    self._share[row] = value
        self.print_queue()

    def minute(self) -> None:
        """Jobs age, and what is left of the shares of some users changes."""
        steps = 1 + self._rng.integers(-3, 4, len(self.users))
        of_user = dict(zip(self.users, steps.tolist(), strict=True))
        moved = np.array([of_user[job.user] for job in self.jobs])
        self._base = np.where(self._base > 0, np.maximum(self._base + moved, 1), 0)
        self.print_queue()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Carry out, in a thread, what comes through the pipe `ask`; each time the pipe `told` says when it is done."""
        thread = threading.Thread(target=self._answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            (self.directory / "ask").write_text("end\n")
            thread.join()

    def _answer(self) -> None:
        while (asked := (self.directory / "ask").read_text().split()) != ["end"]:
            if asked == ["update"]:
                self.update((self.directory / "updates").read_text())
            else:
                self.minute()
            (self.directory / "told").write_text("done\n")


def let_a_minute_pass(directory: Path) -> None:
    """For the process that uses the programs in `directory`."""
    (directory / "ask").write_text("minute\n")
    (directory / "told").read_text()


def _row(*cells: object) -> str:
    return "".join(f"{cell}{SEPARATOR}" for cell in cells)
