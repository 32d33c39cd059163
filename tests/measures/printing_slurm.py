"""A Slurm of any size that prints: stand-ins of its programs, for `measures.scale`.

The programs are shell scripts that print prepared files, those of `lab.benchmarks`; what ``scontrol`` gets on its
standard input is carried out by the process that made them, which then prints the queue anew.
"""

import os
import pwd
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rltuned.controller.write.claims import Entry
from rltuned.core.changes import Applied
from rltuned.lab.benchmarks import NOW, answers, snapshot
from rltuned.slurm.commands import JOB_FIELDS, SEPARATOR, STATUS_FIELDS

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


_ODD: Final[tuple[tuple[float, Mapping[str, str]], ...]] = (
    (0.05, {"Reason": "Dependency", "Dependency": "a", "EligibleTime": "N/A"}),
    (0.02, {"Reason": "JobHeldUser", "PriorityLong": "0", "EligibleTime": "N/A"}),
    (0.15, {"Reason": "QOSMaxGRESPerUser"}),
    (0.05, {"ArrayTaskID": "0-99%5"}),
    (0.05, {"Feature": "gpu"}),
    (0.05, {"Nice": "100"}),
    (0.63, {}),
)
"""Shares of the pending jobs, and what is odd about them."""


class _Row(NamedTuple):
    """What does not change of a job."""

    job_id: int
    submit: int
    user: str
    listed: int
    """Rows of it in sprio: one for each partition; 0: it is under no multifactor."""
    nice: str
    jobs: str
    """Of its row in jobs, what is in front of the priority."""
    status: tuple[str, str]
    """The same of status, and what is behind OverSubscribe."""


class PrintingSlurm:
    """The queue and the cluster of `benchmarks.snapshot`, as 24.11 prints them; the same for the same arguments.

    Of the pending jobs some are arrays, held, dependent or at a limit. Half of those that are nothing of the kind, and
    take any type of GPU, carry a site factor of an earlier daemon's.
    """

    def __init__(self, directory: Path, jobs: int, nodes: int, seed: int, *, limited: bool) -> None:
        """`directory` gets the programs and what they print. `limited`: Slurm's RPC limiter is on."""
        self.directory = directory
        self._rng = np.random.default_rng(seed)
        printed = answers(snapshot(jobs, nodes, seed))
        kinds = self._rng.choice(len(_ODD), jobs, p=[share for share, _ in _ODD]).tolist()
        odd = [dict(_ODD[kind][1]) for kind in kinds]
        self.rows, priorities, carries = list[_Row](), list[str](), list[bool]()
        for at, line in enumerate(printed.pop("jobs").splitlines()):
            special = odd[at] if at < jobs else {}
            values = dict(zip(JOB_FIELDS, line.split(SEPARATOR), strict=False)) | {"Dependency": "("} | special
            self.rows.append(_fixed(values))
            priorities.append(values["PriorityLong"])
            # Of jobs that can run and that the daemon manages now, too: what it would have to give back is no part of a
            # cycle.
            carries.append(at < jobs and not special and "gres/gpu:" not in values["tres-alloc"])
        self._at = {row.job_id: at for at, row in enumerate(self.rows)}
        self.users = sorted({row.user for row in self.rows})
        self._base = np.array(priorities, dtype=np.int64)
        self.factor = np.zeros(len(self.rows), dtype=np.int64)
        carrying = np.array(carries) & (self._rng.random(len(self.rows)) < 0.5)
        self.factor[carrying] = self._rng.integers(1, 4, int(carrying.sum()))
        self._share = ["OK"] * len(self.rows)
        for name, text in printed.items():
            self._put(name, text)
        self._print_once(limited=limited)
        self.print_queue()

    # --- what is printed

    def print_queue(self) -> None:
        """The answers of squeue and sprio, as far as a write or a minute changes them."""
        shown = np.where(self._base > 0, np.maximum(self._base + self.factor, 1), 0).tolist()
        jobs, status, sprio = [], [], []
        for row, value, factor, share in zip(self.rows, shown, self.factor.tolist(), self._share, strict=True):
            jobs.append(row.jobs + _line(value, row.nice, share))
            before, behind = row.status
            status.append(f"{before}{value}{SEPARATOR}{share}{SEPARATOR}{behind}\n")
            if row.listed:
                line = _line(row.job_id, factor, value, "cpu=10,gres/gpu=20", row.nice, 310, 10, 5, 0, 5000, 0)
                sprio.append(line * row.listed)
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
            "SlurmctldParameters": "rl_enable" if limited else "(null)",
            "SLURM_VERSION": "24.11.5",
        }
        self._put("config", "".join(f"{key} = {value}\n" for key, value in settings.items()))
        self._put("privilege", f"{pwd.getpwuid(os.geteuid()).pw_name}|Operator\n")
        self._put("ping", "Slurmctld(primary) at ctl is UP\n")
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
        rows = [(self.rows[at], int(self.factor[at])) for at in np.flatnonzero(self.factor).tolist()]
        return [Entry(Applied(row.job_id, row.submit, factor), touched=NOW - 600.0) for row, factor in rows]

    def update(self, text: str) -> None:
        for line in text.splitlines():
            words = dict(word.split("=", 1) for word in line.split()[1:])
            row = self._at[int(words.pop("JobId"))]
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
        moved = np.array([of_user[row.user] for row in self.rows])
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


def _fixed(values: Mapping[str, str]) -> _Row:
    waits = values["StateCompact"] == "PD" and values["Reason"] not in {"Dependency", "JobHeldUser"}
    at = STATUS_FIELDS.index("PriorityLong")
    return _Row(
        job_id=int(values["JobID"]),
        submit=int(values["SubmitTime"]),
        user=values["UserName"],
        listed=1 + values["Partition"].count(",") if waits else 0,
        nice=values["Nice"],
        jobs=_cells(*(values[field] for field in JOB_FIELDS[: JOB_FIELDS.index("PriorityLong")])),
        status=(
            _cells(*(values[field] for field in STATUS_FIELDS[:at])),
            _cells(*(values[field] for field in STATUS_FIELDS[at + 2 :])),
        ),
    )


def _cells(*cells: object) -> str:
    return "".join(f"{cell}{SEPARATOR}" for cell in cells)


def _line(*cells: object) -> str:
    return _cells(*cells) + "\n"
