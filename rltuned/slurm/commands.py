"""Every command line that rltuned can issue to Slurm, in one table: programs, fixed arguments, environment, patience.

Columns are asked for one by one and separated by the byte 0x1f (unit separator), which no partition, QOS, reservation,
feature or node name may hold, and no account where Slurm looks at it (AccountingStorageEnforce). Nothing else
that users write freely is asked for (see the package page), but what `slurm.job_names` reads.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rltuned.core.ended import FINAL_STATES
from rltuned.core.errors import SlurmError

SEPARATOR: Final = "\x1f"
CUT: Final = "\0"  # where the rest of a line was left out

EXCLUSIVE_SINCE: Final = (26, 5)
"""First release whose squeue has the column Exclusive, and whose OverSubscribe no longer tells (measured)."""


QUICK: Final = 0.25
"""Patience with a health check: no answer within a quarter of the time-out is an answer."""
LONG: Final = 3.0
"""Patience with a write: the client itself sleeps, without a word, while slurmctld's RPC limiter says so."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command line."""

    name: str
    program: str
    arguments: tuple[str, ...]
    purpose: str
    patience: float = 1.0  # factor of ``slurm.timeout``
    words: tuple[re.Pattern[str], ...] = ()  # what the words behind the fixed ones look like
    writes: bool = False  # changes Slurm, by what stands on its standard input
    output_limit: int | None = None  # bytes, where less than the runner's is enough
    private: bool = False  # its output has text of users, and is never said
    cuts_lines: bool = False
    """Whether a line that is far longer than others ends with `CUT`, and is left out where it is the same as the one
    before: a user may make a column as long as they like, in as many tasks of an array.
    """

    def argv(self, bin_dir: Path, *words: str) -> list[str]:
        """The words to execute; SlurmError where a variable one is missing, unwanted, or not of its pattern."""
        if len(words) != len(self.words):
            raise SlurmError(f"{self.name}: takes {len(self.words)} variable words, not {len(words)}")
        for pattern, word in zip(self.words, words, strict=True):
            if not pattern.fullmatch(word):
                raise SlurmError(f"{self.name}: refusing the argument {word!r}")
        return [str(bin_dir / self.program), *self.arguments, *words]


GPU_OPTIONS: Final = ("tres-per-job", "tres-per-node", "tres-per-task", "tres-per-socket")
"""--gpus, --gpus-per-node and --gres, --gpus-per-task, --gpus-per-socket."""

JOB_FIELDS: Final = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "HetJobID"),
    *("UserName", "Account", "Partition", "QOS", "Reservation", "StateCompact", "Reason"),
    *("SubmitTime", "EligibleTime", "StartTime", "EndTime", "TimeLimit"),
    *("NumNodes", "NumTasks", "NumCPUs", "MinMemory", "MinTmpDisk", "tres-alloc", *GPU_OPTIONS, "mem-per-tres"),
    *("Feature", "ReqNodes", "NodeList", "Dependency", "Deadline", "PriorityLong", "Nice", "OverSubscribe"),
)
"""Columns of ``squeue -O`` on every release, squeue(1). `tres-alloc` of a pending job is what it asks for."""

WIDTHS: Final[Mapping[str, int]] = MappingProxyType({"Dependency": 1})
"""Columns of which so many characters are printed: one tells a dependency from `(null)`, a thousand are 60 kB."""

_TASK_WIDTHS: Final = {"ArrayTaskID": 1}
"""As `WIDTHS`, with a row for each task: one tells a task from `N/A`, and the rows of one record are the same."""

REQUEST_FIELDS: Final = ("Account", "Partition", "QOS", "TimeLimit", "NumNodes", "NumCPUs", *GPU_OPTIONS)
"""What a pending job asks for, and in whose name: what was lent to a job was lent to this request."""

STATUS_FIELDS: Final = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "StateCompact"),
    *("SubmitTime", "PriorityLong", "OverSubscribe", "Reason", *REQUEST_FIELDS),
)

EXCLUSIVE: Final = "Exclusive"  # column of `EXCLUSIVE_SINCE` and later: NO, NODE, USER, MCS, TOPO

EXCLUDED_FORMAT: Final = SEPARATOR.join(("%A", "%F", "%1K", "%x")) + SEPARATOR
"""``squeue -o``: id, array id, task id (as `_TASK_WIDTHS`), excluded nodes. `-O` has none before 26.05; `%x` always."""

SITE_FIELDS: Final = ("%i", "%S", "%Y", "%T", "%N", "%A", "%F", "%J", "%P", "%Q", "%B")
"""Columns of ``sprio -o``, sprio(1): id, site factor, priority, and the other terms of the sum: TRES, nice, age, fair
share, job size, partition, QOS, association. A job of several partitions has one row for each."""

SITE_FORMAT: Final = SEPARATOR.join(SITE_FIELDS) + SEPARATOR

ENDED_FIELDS: Final = (
    *("JobIDRaw", "User", "Account", "Partition", "State", "End"),
    *("ElapsedRaw", "TimelimitRaw", "ReqTRES", "AllocTRES"),
)

TRACE_FIELDS: Final = (
    *("JobIDRaw", "User", "Account", "Partition", "QOS", "Submit", "Eligible", "Start", "End"),
    *("ElapsedRaw", "TimelimitRaw", "ReqTRES", "AllocTRES", "NNodes", "State"),
)
"""What `rltuned.simulate.workload` reads of sacct (docs/evaluation.md)."""

ENDED_NAMES: Final = ("JobIDRaw", "End", "User", "JobName", "WorkDir")
WAITING_NAMES: Final = ("%F", "%V", "%u", "%j", "%Z")
"""Of ``squeue -o``: id (that of its array for a task), submission, user, name, work directory. Whole, as no width is
said, with whatever newlines are in them (print.c of 22.05 to 26.05)."""

TELLING_STATES: Final = tuple(name for name, state in FINAL_STATES.items() if state.tells)

HISTORY_BYTES: Final = 16 * 1024 * 1024
"""About 120,000 jobs of one answer of sacct; likewise `TRACE_BYTES`."""

TRACE_BYTES: Final = 2 * HISTORY_BYTES

_QUEUE = ("--noheader", "--all", "--local")
# --all: hidden partitions too. --local: in a federation, only what this slurmctld can change. No -t: the default is
# pending, running, suspended and completing jobs. No -r: a pending array is one row.

_TASKS = (*_QUEUE, "-r")
# A row for each waiting task, with the number of its record: without it squeue does not show a task that was changed.

_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
# In UTC, as `environment` pins the zone.

_WORD = "(w[0-9a-f]{64})"  # behind each column where users' text is read


def _queue(name: str, fields: tuple[str, ...], purpose: str, options: tuple[str, ...] = _QUEUE) -> Command:
    widths = WIDTHS if options is _QUEUE else _TASK_WIDTHS
    columns = ",".join(f"{field}:{widths.get(field, '')}{SEPARATOR}" for field in fields)
    return Command(name, "squeue", (*options, "-O", columns), purpose, cuts_lines=True)


def _ended(
    name: str, fields: tuple[str, ...], states: Iterable[str], purpose: str, most: int, word: str = ""
) -> Command:
    """Jobs that have ended in a stretch of time, from sacct, which asks slurmdbd. `word`: pattern of what separates."""
    # --duplicates: else only the last run of a job that was requeued is told of.
    options = ("--allusers", "--allocations", "--duplicates", "--noheader", "--parsable", "--noconvert")
    delimiter = () if word else (f"--delimiter={SEPARATOR}",)
    arguments = (*options, *delimiter, f"--state={','.join(states)}", f"--format={','.join(fields)}")
    drawn = (f"--delimiter={word}",) if word else ()
    words = tuple(map(re.compile, (f"--starttime={_MOMENT}", f"--endtime={_MOMENT}", *drawn)))
    return Command(name, "sacct", arguments, purpose, words=words, output_limit=most, private=bool(word))


_SACCTMGR = ("--noheader", "--parsable2", "--readonly")


def _names(name: str, program: str, *what: str) -> Command:
    options = _SACCTMGR if program == "sacctmgr" else ("--all", "--oneliner")
    return Command(name, program, (*options, "show", *what), "names, to compare those of [scope] with")


_COMMANDS: Final = (
    Command("version", "scontrol", ("-V",), "release of the installed commands; asks nobody", QUICK),
    Command("ping", "scontrol", ("ping",), "whether slurmctld answers; the cheap health check", QUICK),
    Command("federation", "scontrol", ("show", "federation"), "the federation that the cluster is in, if any"),
    Command("config", "scontrol", ("show", "config"), "plugins, parameters, limiter"),
    _queue("jobs", JOB_FIELDS, "all pending jobs and all that hold resources"),
    _queue("jobs-exclusive", (*JOB_FIELDS, EXCLUSIVE), "as jobs, on 26.05 and later"),
    Command(
        "excluded", "squeue", (*_TASKS, "-o", EXCLUDED_FORMAT), "excluded nodes, records of tasks", cuts_lines=True
    ),
    _queue("status", STATUS_FIELDS, "the few facts re-read around a write", _TASKS),
    _queue("status-exclusive", (*STATUS_FIELDS, EXCLUSIVE), "as status, on 26.05 and later", _TASKS),
    Command("site-factors", "sprio", ("--noheader", "-o", SITE_FORMAT), "site factor of each job under multifactor"),
    Command("nodes", "scontrol", ("--all", "--details", "--oneliner", "show", "node"), "nodes: capacity, use, state"),
    Command("partitions", "scontrol", ("--all", "--oneliner", "show", "partition"), "partitions and their limits"),
    Command("diagnostics", "sdiag", (), "load of slurmctld", QUICK),
    Command(
        "privilege",
        "sacctmgr",
        (*_SACCTMGR, "show", "user", "format=user,adminlevel"),
        "AdminLevel of the calling user",
        words=(re.compile(r"user=[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"),),
    ),
    Command(
        "preemption",
        "sacctmgr",
        (*_SACCTMGR, "show", "qos", "format=preemptmode"),
        "whether priority decides who is stopped; asks slurmdbd",
    ),
    Command(
        "events",
        "sacctmgr",
        (*_SACCTMGR, "show", "event", "format=NodeName,State,TimeStart,TimeEnd"),
        "when nodes took no new job: down, drained, failed; asks slurmdbd",
        LONG,
        words=(re.compile(rf"Start={_MOMENT}"),),
    ),
    _names("qos", "sacctmgr", "qos", "format=name"),
    _names("accounts", "sacctmgr", "account", "format=account"),
    _names("users", "sacctmgr", "user", "format=user"),
    _names("reservations", "scontrol", "reservation"),
    _ended("history", ENDED_FIELDS, TELLING_STATES, "ended jobs, for run-time predictions", HISTORY_BYTES),
    replace(_ended("trace", TRACE_FIELDS, FINAL_STATES, "ended jobs, for a replay", TRACE_BYTES), patience=LONG),
    Command(
        "waiting-names",
        "squeue",
        (*_QUEUE, "--states=PD"),
        "what waiting jobs are called, where the site asks for it",
        QUICK,
        words=(re.compile("--jobs=[0-9]+(,[0-9]+)*"), re.compile(rf"--format=%F{_WORD}%V\1%u\1%j\1%Z\1")),
        output_limit=HISTORY_BYTES,
        private=True,
    ),
    _ended("ended-names", ENDED_NAMES, FINAL_STATES, "the same of ended jobs", HISTORY_BYTES, _WORD),
    Command("update", "scontrol", (), "update lines, many per process", LONG, writes=True),
)

REGISTRY: Final[Mapping[str, Command]] = MappingProxyType({command.name: command for command in _COMMANDS})
"""By name. There is no other way to run anything (`process.Runner.run` takes a name)."""


def environment(conf: Path | None) -> dict[str, str]:
    """The whole environment of every command: no SQUEUE_*, SLURM_CLUSTERS or PATH of the caller's changes an answer."""
    pinned = {
        "SLURM_TIME_FORMAT": "%s",
        "LC_ALL": "C",
        "TZ": "UTC",
        # The whole list of an array's tasks (squeue(1)): of one that is cut, too few are counted.
        "SLURM_BITSTR_LEN": "0",
    }
    if conf is not None:
        pinned["SLURM_CONF"] = str(conf)
    return pinned
