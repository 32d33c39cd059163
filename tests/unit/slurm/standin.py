"""Scripted stand-ins for Slurm's programs: for every failure that a real cluster cannot be made to show on demand."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from rltuned.slurm.commands import JOB_FIELDS, REGISTRY, SEPARATOR, STATUS_FIELDS
from rltuned.slurm.process import Runner

RECORDED = Path(__file__).parents[2] / "recorded"

VERSION = "slurm-wlm 24.11.5\n"
PING = "Slurmctld(primary) at ctl is UP\n"
NODES = (
    "NodeName=p100-1 Arch=x86_64 CoresPerSocket=28  CPUAlloc=4 CPUEfctv=56 CPUTot=56 CPULoad=0.1 "
    "AvailableFeatures=p100,gpu ActiveFeatures=p100,gpu Gres=gpu:p100:4 GresDrain=N/A GresUsed=gpu:p100:2(IDX:0-1) "
    "OS=Linux 6.1 #1 SMP RealMemory=256000 AllocMem=4000 FreeMem=9 Sockets=2 Boards=1 State=MIXED ThreadsPerCore=1 "
    "TmpDisk=900 Weight=1 Partitions=gpu CfgTRES=cpu=56,mem=250G,gres/gpu=4 AllocTRES=cpu=4,mem=4000M,gres/gpu=2\n"
    "NodeName=k80-1 CPUAlloc=0 CPUEfctv=28 CPUTot=28 ActiveFeatures=k80 Gres=gpu:k80:2 GresUsed=gpu:k80:0(IDX:N/A) "
    "RealMemory=128000 AllocMem=0 State=IDLE+DRAIN TmpDisk=0 CfgTRES=cpu=28 AllocTRES= "
    "Reason=bad cable State=IDLE Gres=gpu:99 [root@now] Comment=CPUTot=9999 NodeName=evil\n"
)
PARTITIONS = (
    "PartitionName=gpu AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=7-00:00:00 Nodes=k80-1,p100-1 "
    "PriorityTier=1 OverSubscribe=NO State=UP TRES=cpu=84\n"
    "PartitionName=share Default=NO MaxNodes=4 MaxTime=UNLIMITED Nodes=p100-1 PriorityTier=3 "
    "OverSubscribe=YES:4 State=DOWN\n"
)
DIAGNOSTICS = (
    "*****\nsdiag output at Sat Nov 21 06:20:52 2026 (1795242052)\n*****\n"
    "Data since      Sat Nov 21 06:15:40 2026 (1795241740)\n*****\n"
    "Server thread count:  7\nAgent queue size:     3\n\n"
    "Job states ts:  Sat Nov 21 06:20:25 2026 (1795242025)\nJobs pending:   0\nJobs running:   0\n\n"
    "Main schedule statistics (microseconds):\n\tLast cycle:   249\n\tMean cycle:   60\n\n"
    "Backfilling stats\n\tTotal cycles: 5\n\tMean cycle: 14664\n\n"
    "Remote Procedure Call statistics by message type\n\tREQUEST_X ( 1) count:60 ave_time:2837 total_time:170252\n"
)
CONFIG = (
    "Configuration data as of 1795242318\nAccountingStorageTRES   = cpu,mem,gres/gpu\n"
    "AccountingStorageType   = accounting_storage/slurmdbd\nClusterName             = testbed\n"
    "PreemptType             = (null)\nPriorityCalcPeriod      = 00:01:00\n"
    "PrioritySiteFactorPlugin = (null)\nPriorityType            = priority/multifactor\n"
    "SchedulerParameters     = bf_interval=1,bf_continue\nSchedulerType           = sched/backfill\n"
    "SelectType              = select/cons_tres\nSlurmUser               = slurm(64030)\n"
    "SlurmctldParameters     = rl_enable,rl_bucket_size=60,rl_refill_rate=10,rl_refill_period=5\n"
    "SLURM_VERSION           = 24.11.5\n\nSlurmctld(primary) at ctl is UP\n"
)

_PENDING = (
    "JobID=7 ArrayJobID=7 UserName=alice Account=physics Partition=gpu QOS=normal Reservation=(null) StateCompact=PD "
    "Reason=Priority SubmitTime=1795242048 EligibleTime=1795242048 TimeLimit=30:00 NumNodes=1 NumTasks=1 NumCPUs=4 "
    "MinMemory=1000M MinTmpDisk=0 tres-alloc=cpu=4,mem=4000M,node=1,billing=4,gres/gpu=2,gres/gpu:p100=2 "
    "tres-per-node=gres/gpu:p100:2 Feature=(null) ReqNodes= NodeList= Dependency=( PriorityLong=16103 Nice=0 "
    "OverSubscribe=OK"
)
PENDING_JOB = dict.fromkeys(JOB_FIELDS, "N/A") | dict(word.split("=", 1) for word in _PENDING.split())
RUNNING = {
    "StateCompact": "R",
    "Reason": "None",
    "StartTime": "1795242060",
    "EndTime": "1795243860",
    "NodeList": "p100-1",
}


def job(number=7, **fields):
    """A job as squeue's columns; keyword names have _ for -."""
    changed = {name.replace("_", "-"): str(value) for name, value in fields.items()}
    assert changed.keys() <= PENDING_JOB.keys() | {"Exclusive"}
    return PENDING_JOB | {"JobID": str(number), "ArrayJobID": str(number)} | changed


def rows(jobs, fields=JOB_FIELDS):
    """squeue's answer for these jobs."""
    return "".join("".join(one[name] + SEPARATOR for name in fields) + "\n" for one in jobs)


def sprio_row(number, site, priority=16103, tres="cpu=1,mem=0", terms=(0, 0, 10000, 103, 1000, 5000, 0)):
    """A row of sprio; terms: nice, age, fair share, job size, partition, QOS, association."""
    return "".join(f"{value}{SEPARATOR}" for value in (number, site, priority, tres, *terms)) + "\n"


@dataclass
class StandIn:
    """A directory of scripts that answer like Slurm's programs, and a log of what was asked."""

    folder: Path
    answers: dict = field(default_factory=dict)

    @property
    def bin_dir(self):
        return self.folder / "bin"

    def __post_init__(self):
        self.bin_dir.mkdir(parents=True)
        said = {"version": VERSION, "ping": PING, "config": CONFIG, "nodes": NODES, "partitions": PARTITIONS}
        said |= {"diagnostics": DIAGNOSTICS, "privilege": "rltuned|Operator\n"}
        for name in (*said, "federation", "events", "qos", "accounts", "users", "reservations", "update"):
            self.answer(name, said.get(name, ""))
        self.queue([])

    def answer(self, name, stdout="", stderr="", code=0):
        """What a command of the registry says from now on."""
        command = REGISTRY[name]
        for kind, text in (("out", stdout), ("err", stderr)):
            data = text if isinstance(text, bytes) else text.encode()
            (self.folder / f"{name}.{kind}").write_bytes(data)
        self.answers[name] = (command, code)
        self._write(command.program)

    def queue(self, jobs, excluded=None, factors=None):
        """The queue that squeue and sprio show."""
        self.answer("jobs", rows(jobs))
        self.answer("status", rows(jobs, STATUS_FIELDS))
        if jobs and "Exclusive" in jobs[0]:
            self.answer("jobs-exclusive", rows(jobs, (*JOB_FIELDS, "Exclusive")))
            self.answer("status-exclusive", rows(jobs, (*STATUS_FIELDS, "Exclusive")))
        columns = [(one["JobID"], one["ArrayJobID"], one["ArrayTaskID"]) for one in jobs]
        nodes = {str(number): text for number, text in (excluded or {}).items()}
        listed = [(*ids, nodes.get(ids[1], "")) for ids in columns]
        self.answer("excluded", "".join("".join(f"{value}{SEPARATOR}" for value in one) + "\n" for one in listed))
        self.answer("site-factors", "".join(sprio_row(number, site) for number, site in (factors or {}).items()))

    def script(self, program, text):
        """Replace a program by a script."""
        path = self.bin_dir / program
        path.write_text(text)
        path.chmod(0o755)

    def _write(self, program):
        lines = ["#!/bin/sh", f'printf "%s\\n" "{program} $*" >> {shlex.quote(str(self.folder / "calls"))}']
        for name, (command, code) in self.answers.items():
            if command.program != program:
                continue
            fixed = shlex.quote(" ".join(command.arguments))
            pattern = f"{fixed}' '*" if command.words else fixed
            out, err = (shlex.quote(str(self.folder / f"{name}.{kind}")) for kind in ("out", "err"))
            keep = f"cat > {shlex.quote(str(self.folder / 'stdin'))}; " if command.writes else ""
            lines.append(f'case "$*" in {pattern}) {keep}cat {out}; cat {err} >&2; exit {code};; esac')
        lines.append('echo "stand-in: no answer for $*" >&2; exit 97')
        self.script(program, "\n".join(lines) + "\n")

    @property
    def calls(self):
        """Command lines so far."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def stdin(self):
        """What the last writing command was given."""
        path = self.folder / "stdin"
        return path.read_text() if path.exists() else None

    def runner(self, timeout=20.0, **options):
        return Runner(self.bin_dir, timeout=timeout, **options)

    def load(self, recorded, suffix=""):
        """Answer with what a real cluster said."""
        for name in REGISTRY:
            path = recorded / f"{name}{suffix}.txt"
            if path.exists():
                self.answer(name, path.read_bytes())


def releases():
    """Releases that answers were recorded of."""
    return sorted(path.name for path in RECORDED.iterdir() if path.is_dir()) if RECORDED.is_dir() else []


def labels(release, suffix=""):
    """Job id by label of the recorded queue."""
    recorded = json.loads((RECORDED / release / f"jobs{suffix}.json").read_text())
    return {label: about["id"] for label, about in recorded.items()}
