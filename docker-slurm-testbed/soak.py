#!/usr/bin/env python3
"""Chaos on a real Slurm: a busy cluster, the installed rltuned, seeded faults, and the promises checked from outside.

    docker-slurm-testbed/testbed soak --slurm 24.11 --minutes 60 --seed 7 --json SOAK.json

Keeps jobs of several users coming, runs rltuned as its own user (an operator, under the RPC limiter) with a short
cycle, plays its systemd unit and its dead-man timer, injects one fault after the other, and lets admins and users
change jobs all the while. What happened to whom is read from slurmctld's own log, which names the user of each update:
so it is known whose value each value is, whatever rltuned says. Prints what was done and found; exits with 1 on any
violation.

Invariants (docs/operations.md has the promises):

- stands: what an admin set is not written over, and a held job gets nothing
- untouched: rltuned's user holds, releases, cancels and requeues nobody
- given back: without a daemon that writes, nothing of rltuned's is left after the bound, and in no stage but active and
  canary does it write anything but to give back
- wanted: beside a daemon that writes, each job with something of rltuned's is one that its last plan raises
- never below: rltuned writes no site factor below 0, and no job with one of its own stands below what Slurm alone gives
- lent for: the book of loans has each job that is raised
- alive: the daemon goes on by itself after each fault
- bounded: memory, threads, descriptors, journal
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shlex
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import testbed
from testbed import OPERATOR_UID, TestbedError, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONFIG = "/etc/rltuned/config.toml"
STATE = "/dev/shm/rltuned"  # noqa: S108  # of a container: a file system of 64 MiB that can be filled
MIRROR = "/run/rltuned"
LOG = "/var/log/rltuned.log"
PIDFILE = "/run/soak-rltuned.pid"
FAKETIME = "/run/soak-faketime"
INTERVAL = 5.0
"""Seconds from cycle to cycle."""
PENDING = 30
"""Jobs that are kept waiting, at least."""
BOUND = 150.0
"""Seconds in which what nobody wants is given back once Slurm answers: 40 jobs under the RPC limiter take 60."""
RACE = 6.0
"""Seconds: what a person does while a batch is on its way (the limiter holds it up) is nobody's fault."""
SAVED = 7.0
"""Seconds of changes that a killed slurmctld may forget (it saves at most 5 s after a change)."""
MOST_RSS, MOST_THREADS, MOST_FILES, MOST_JOURNAL = 300_000_000, 24, 48, 4_000_000
FACTOR_ZERO = 0x80000000
"""slurmctld's log shows the site factor with this added."""
ROUNDING = 2
"""Points by which sprio's sum and squeue's priority may differ."""
WRITING = frozenset({"active", "canary"})
LONG = 20.0
"""Minutes of a run that has time for what takes minutes."""


@dataclass
class Violation:
    """What should not be."""

    invariant: str
    text: str
    after: str
    """The last fault."""
    at: float
    """Seconds since the start."""


@dataclass
class Update:
    """One change of one job, as slurmctld logged it."""

    at: float
    uid: int
    value: int


@dataclass
class Ledger:
    """Who set what on which job, by slurmctld's log."""

    factors: dict[int, list[Update]] = field(default_factory=dict)
    priorities: dict[int, list[Update]] = field(default_factory=dict)
    """Explicit ones; a release logs the priority that multifactor gives."""
    held: dict[int, float] = field(default_factory=dict)
    """Since when."""
    crashes: list[float] = field(default_factory=list)
    """When slurmctld was killed."""
    admins: dict[int, float] = field(default_factory=dict)
    """Jobs whose explicit priority an admin set, and when."""
    named: dict[int, float] = field(default_factory=dict)
    """Jobs that an admin wanted to be left alone, and when."""
    requeued: set[int] = field(default_factory=set)
    """Held or not eligible for a while, so that Slurm shows nobody their site factor."""
    pending: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    """Changes whose request has not been logged to its end."""
    lines: dict[int, deque[str]] = field(default_factory=dict)
    """The last lines of the log about each job, for the report of a violation."""

    def crashed(self, at: float) -> None:
        """Slurmctld is killed: what it took just before may be lost with it."""
        self.crashes.append(at)
        for known in (self.admins, self.held):
            for job in [job for job, since in known.items() if at - since < SAVED]:
                del known[job]

    def hold(self, job: int, at: float) -> None:
        """A job is held, by slurmctld's log, which may be read after a crash."""
        if not self.lost(at):
            self.held.setdefault(job, at)

    def lost(self, at: float) -> bool:
        """Whether slurmctld was killed before it had surely saved what it took then."""
        return any(0 <= crash - at < SAVED for crash in self.crashes)

    def factor(self, job: int) -> Update | None:
        """The last change of the site factor."""
        return self.factors[job][-1] if self.factors.get(job) else None

    def ours(self, job: int, value: int, *, explicit: bool = False) -> bool:
        """Whether this site factor (or explicit priority) may be one that rltuned set.

        The last one that was set, or an earlier one that a killed slurmctld brought back.
        """
        updates = (self.priorities if explicit else self.factors).get(job, [])
        recent = [crash - SAVED for crash in self.crashes]
        possible = [
            update
            for at, update in enumerate(updates)
            if at == len(updates) - 1 or any(updates[at + 1].at >= since for since in recent)
        ]
        return any(update.uid == OPERATOR_UID and update.value == value for update in possible)


JOB = re.compile(r"\bJobId=(\d+)")
KEPT_LINES = 12
STAMP = re.compile(r"\[([0-9T:.-]+)\] (.*)")
FACTOR = re.compile(r"_update_job: setting AdinPrioFactor to (\d+) for JobId=(\d+)")
PRIORITY = re.compile(r"_update_job: set priority to (\d+) for JobId=(\d+)")
COMPLETE = re.compile(r"_slurm_rpc_update_job: complete JobId=(\d+)\S* uid=(\d+)")
HOLD = re.compile(r"_hold_job_rec: hold on JobId=(\d+)\S* by uid (\d+)")
RELEASE = re.compile(r"_release_job_rec: release hold on JobId=(\d+)\S* by uid (\d+)")
REQUEUE = re.compile(r"Requeuing JobId=(\d+)")
BY_US = re.compile(rf"\buid[ =]{OPERATOR_UID}\b")
HARMLESS = ("_slurm_rpc_update_job", "_slurm_rpc_dump", "rate limit", "_slurm_rpc_get_priority", "Security violation")


class Soak:
    """One run."""

    def __init__(self, project: testbed.Project, seed: int, minutes: float, *, clock: bool) -> None:
        """Nothing is started yet. `clock`: the wall clock is to be set, too."""
        self.project, self.minutes, self.clock = project, minutes, clock
        self.rng = random.Random(seed)  # noqa: S311  # faults to repeat, no secret
        self.began = time.monotonic()
        self.ledger = Ledger()
        self.violations: list[Violation] = []
        self.faults: Counter[str] = Counter()
        self.people: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()
        self.races = 0
        self.last_fault = "none"
        self.stage, self.dry_run = "active", False
        self.tight = self.rng.random() < 0.34
        """Whether Slurm's RPC limiter has its defaults; else it lets ten times as much through."""
        self.alive = False
        """Whether a daemon should be."""
        self.not_writing: float | None = None
        """Since when (container's clock) no daemon writes."""
        self.log_offset = 0
        self.submitted = 0
        self.faketime = False
        self.peak: dict[str, int] = {}
        self.held_by_admin: set[int] = set()

    # --- commands

    def sh(self, script: str, *, service: str = "ctl", check: bool = True) -> str:
        """A shell script in a container; its output."""
        return self.project.execute(script, service=service, check=check).stdout

    def tell(self, text: str) -> None:
        """A line about progress."""
        say(f"{time.monotonic() - self.began:6.0f} s  {text}")

    def violation(self, invariant: str, text: str) -> None:
        """Notes what should not be; the same once."""
        if any(known.invariant == invariant and known.text == text for known in self.violations):
            return
        found = Violation(invariant, text, self.last_fault, round(time.monotonic() - self.began, 1))
        self.violations.append(found)
        self.tell(f"VIOLATION {invariant}: {text}")
        if about := re.match(r"job (\d+)", text):
            for line in self.ledger.lines.get(int(about[1]), ()):
                self.tell(f"  {line}")

    def wait(self, condition: Callable[[], object], seconds: float, pause: float = 1.0) -> bool:
        """Waits for a condition, for so long."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
        return True

    def now(self) -> float:
        """The container's clock."""
        return float(self.sh("date +%s.%N"))

    # --- the daemon, its unit and its timer

    def configure(self, **sections: dict[str, Any]) -> None:
        """Writes the configuration."""
        settings: dict[str, dict[str, Any]] = {
            "cycle": {"interval": INTERVAL, "stage": self.stage},
            "policy": {"name": self.rng.choice(["saf", "sjf", "wfp3", "f1"])},
            "estimates": {"source": "limit"},
            "lend": {"share": 1.0},
            "placement": {"apply": self.rng.choice(["off", "off", "oversubscribe"])},
            "scope": {"exclude_users": ["dave"], "canary": "50 %"},
            "slurm": {"timeout": 10.0},
            "write": {"give_back_after": 60.0},
            "state": {"directory": STATE, "mirror": MIRROR},
            "metrics": {"listen": ""},
            "log": {"format": "json", "level": "debug"},
        }
        for name, values in sections.items():
            settings[name].update(values)
        lines = []
        for name, values in settings.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.project.execute(f"cat >{CONFIG}.new && mv {CONFIG}.new {CONFIG}", text_input="\n".join(lines) + "\n")

    def limiter(self) -> None:
        """Slurm's RPC limiter with its defaults, or with room for ten times as much."""
        words = "rl_enable" if self.tight else "rl_enable,rl_bucket_size=300,rl_refill_rate=20"
        change = f"s/^SlurmctldParameters=.*/SlurmctldParameters={words}/"
        self.sh(f"sed -i '{change}' /etc/slurm/slurm.conf; scontrol reconfigure; sleep 1", check=False)
        self.start_slurmctld()

    def install(self, *, clock: bool) -> None:
        """A wheel of this source tree, as an operator would; and a clock that can be set, where there is one to be
        had.
        """
        self.project.install_rltuned()
        self.sh(f"install -o rltuned -g rltuned -m 640 /dev/null {LOG}")
        self.limiter()
        self.configure()
        if not clock:
            return
        has = "ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null"
        get = "apt-get -o Acquire::Check-Valid-Until=false -qq update && apt-get -qq install -y libfaketime"
        self.sh(f"{has} || (timeout 60 bash -c {shlex.quote(get)}) >/dev/null 2>&1", check=False)
        self.faketime = bool(self.sh(has, check=False).strip())
        self.set_clock("+0")
        # The one of Debian 12 breaks epoll_wait(2) and clock_nanosleep(2).
        sleeps = self.in_venv("python -c 'import time; time.sleep(0.01)'")
        works = self.project.execute(
            f"runuser -u rltuned -- {sleeps} && runuser -u rltuned -- {self.rltuned('plan')} >/dev/null", check=False
        )
        self.faketime = self.faketime and works.returncode == 0

    def set_clock(self, offset: str) -> None:
        """The wall clock of rltuned's processes, in seconds before or after the real one."""
        # libfaketime ends a program that finds half a line.
        self.sh(f"echo {offset} >{FAKETIME}.new && chmod 644 {FAKETIME}.new && mv {FAKETIME}.new {FAKETIME}")

    def rltuned(self, arguments: str) -> str:
        """The command line of rltuned, with a clock that can be set where there is one."""
        return self.in_venv(f"rltuned {arguments}")

    def in_venv(self, command: str) -> str:
        """Likewise of any program of rltuned's environment."""
        fake = (
            f"env LD_PRELOAD=$(ls /usr/lib/*/faketime/libfaketime.so.1) FAKETIME_TIMESTAMP_FILE={FAKETIME}"
            " FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DONT_RESET=1 "
            if self.faketime
            else ""
        )
        return f"{fake}/opt/rltuned/venv/bin/{command}"

    def start(self) -> None:
        """``systemctl start rltuned``: at most one, ready when its first cycle is over."""
        options = " --dry-run" if self.dry_run else ""
        inner = (
            f"echo $$ >{PIDFILE}; exec runuser -u rltuned -- {self.rltuned('run' + options)} >>{LOG} 2>&1 </dev/null"
        )
        cycles = self.cycles()
        self.sh(f"nohup setsid bash -c {shlex.quote(inner)} >/dev/null 2>&1 &")
        self.alive = True
        if self.stage in WRITING and not self.dry_run:
            self.not_writing = None
        elif self.not_writing is None:
            self.not_writing = self.now()
        if not self.wait(lambda: self.cycles() > cycles, 60.0):
            self.violation("alive", f"no cycle within 60 s of a start: {self.log_tail()}")

    def kill(self, signal: str) -> None:
        """A signal for the daemon; waits for its end where that is what it means."""
        self.sh(f"pkill -{signal} -u rltuned -f 'bin/rltuned run' || true")
        if signal in {"KILL", "TERM"}:
            self.wait(lambda: not self.pid(), 90.0, 0.3)
            self.alive = False
            if self.not_writing is None:
                self.not_writing = self.now()

    def pid(self) -> int:
        """Of the daemon; 0 without one."""
        return int(self.sh("pgrep -o -u rltuned -f 'bin/rltuned run' || echo 0", check=False).strip() or 0)

    def restore(self, options: str = "") -> str:
        """``rltuned restore`` as the unit's ExecStopPost or the timer runs it."""
        return self.sh(f"timeout 900 runuser -u rltuned -- {self.rltuned('restore ' + options)} 2>&1", check=False)

    def deadman(self) -> None:
        """One run of the timer's service."""
        self.restore("--if-stale 300")

    def cycles(self) -> int:
        """Cycles so far that went well, by the log."""
        well = '"outcome": "done".*"event": "cycle.done"'
        return int(self.sh(f"grep -c {shlex.quote(well)} {LOG} || true", check=False).strip() or 0)

    def log_tail(self) -> str:
        """The log's last lines."""
        return self.sh(f"tail -n 4 {LOG} | cut -c1-400", check=False).strip().replace("\n", " | ")

    # --- the queue, and who set what

    def read_log(self) -> None:
        """Takes in what slurmctld has logged since the last time."""
        text = self.sh(f"tail -c +{self.log_offset + 1} /var/log/slurm/slurmctld.log", check=False)
        whole = text[: text.rfind("\n") + 1]
        self.log_offset += len(whole.encode())
        for line in whole.splitlines():
            if match := STAMP.match(line):
                self.take_in(datetime.fromisoformat(match[1]).timestamp(), match[2])

    def take_in(self, at: float, text: str) -> None:
        """One line of slurmctld's log."""
        ledger = self.ledger
        if about := JOB.search(text):
            ledger.lines.setdefault(int(about[1]), deque(maxlen=KEPT_LINES)).append(f"{at:.1f} {text}")
        if match := FACTOR.search(text):
            ledger.pending.setdefault(int(match[2]), []).append(("factor", int(match[1]) - FACTOR_ZERO))
        elif match := PRIORITY.search(text):
            ledger.pending.setdefault(int(match[2]), []).append(("priority", int(match[1])))
        elif match := HOLD.search(text):
            self.checks["untouched"] += 1
            ledger.hold(int(match[1]), at)
            ledger.admins.pop(int(match[1]), None)
            if int(match[2]) == OPERATOR_UID:
                self.violation("untouched", f"rltuned held job {match[1]}: {text}")
        elif match := RELEASE.search(text):
            self.checks["untouched"] += 1
            since = ledger.held.pop(int(match[1]), at)
            if int(match[2]) == OPERATOR_UID and at - since > RACE:
                self.violation("untouched", f"rltuned released job {match[1]}: {text}")
        elif match := REQUEUE.search(text):
            ledger.requeued.add(int(match[1]))
        elif match := COMPLETE.search(text):
            self.settle(at, int(match[1]), int(match[2]))
        elif BY_US.search(text) and not any(word in text for word in HARMLESS):
            self.violation("untouched", f"slurmctld's log has a request of rltuned's user that it never makes: {text}")

    def settle(self, at: float, job: int, uid: int) -> None:
        """A request is complete: its changes are this user's."""
        ledger = self.ledger
        for what, value in ledger.pending.pop(job, []):
            before = ledger.factor(job)
            if what == "factor":
                if uid == OPERATOR_UID:
                    self.judge_factor(at, job, value, before)
                ledger.factors.setdefault(job, []).append(Update(at, uid, value))
                continue
            if uid == OPERATOR_UID:
                self.checks["stands"] += 1
                since = ledger.admins.get(job)
                if since is not None and at - since > RACE:
                    self.violation("stands", f"job {job}: rltuned set or released an admin's priority ({value})")
            if value == 0:
                ledger.hold(job, at)
            else:
                ledger.held.pop(job, None)  # a priority ends a hold without another word
            ledger.priorities.setdefault(job, []).append(Update(at, uid, value))

    def judge_factor(self, at: float, job: int, value: int, before: Update | None) -> None:
        """A site factor that rltuned writes."""
        ledger = self.ledger
        self.checks["stands"] += 1
        if value < 0:
            self.violation("never below", f"job {job}: rltuned wrote SiteFactor={value}")
        hidden = job in ledger.held or job in ledger.admins or job in ledger.requeued
        hidden |= before is not None and ledger.lost(before.at)
        if before is not None and before.uid != OPERATOR_UID and before.value != 0 and not hidden:
            if at - before.at > RACE:
                self.violation("stands", f"job {job}: rltuned wrote {value} over an admin's SiteFactor={before.value}")
            else:
                self.races += 1
        if value == 0:
            return
        if job in ledger.held and at - ledger.held[job] > RACE:
            self.violation("stands", f"job {job} is held, and rltuned wrote SiteFactor={value}")
        if job in ledger.named and at - ledger.named[job] > RACE + 3 * INTERVAL:
            self.violation("stands", f"job {job} was asked back by name, and rltuned wrote SiteFactor={value}")
        if job in ledger.admins and at - ledger.admins[job] > RACE:
            self.violation("stands", f"job {job} has an admin's priority, and rltuned wrote SiteFactor={value}")
        if self.not_writing is not None and at - self.not_writing > RACE:
            self.violation(
                "given back", f"job {job}: SiteFactor={value} written, stage {self.stage}, alive {self.alive}"
            )

    def carried(self) -> dict[int, int]:
        """What of rltuned's is on the jobs that sprio lists: site factors, and explicit priorities."""
        text = self.sh("timeout 20 sprio -h -o '%i %S %Y %A %F %J %P %Q %N %B %T'", check=False)
        found = {}
        for line in text.splitlines():
            words = line.split()
            if len(words) < 3 or not words[0].isdigit():
                continue
            job, factor, priority = (int(word) for word in words[:3])
            # sprio shows a job with an explicit priority with every term 0.
            explicit = priority > 1 and not set(words[3:]) - {"0"} and job not in self.ledger.admins
            if explicit and self.ledger.ours(job, priority, explicit=True):
                found[job] = priority
            elif factor and self.ledger.ours(job, factor):
                found[job] = factor
        return found

    def pending(self) -> list[int]:
        """Pending jobs."""
        words = self.sh("timeout 20 squeue -h -t PD -o %A | sort -u", check=False).split()
        return [int(word) for word in words if word.isdigit()]

    def answers(self) -> bool:
        """Whether slurmctld does."""
        return "UP" in self.sh("timeout 3 scontrol ping", check=False)

    # --- jobs and people

    def keep_busy(self) -> None:
        """More jobs where too few wait."""
        if not self.answers():
            return
        missing = PENDING - len(self.pending())
        if missing > 0:
            self.submitted += missing + 10
            seed = self.rng.randrange(1 << 30)
            script = testbed.workload_script(missing + 10, seed, longest=120)
            self.project.execute("timeout 60 bash -s", text_input=script, check=False)

    def somebody(self) -> None:
        """An admin or a user does something to a job."""
        jobs = self.pending()
        if not jobs:
            return
        job = self.rng.choice(jobs)
        held = sorted(self.held_by_admin & set(jobs))
        acts: dict[str, str] = {
            "admin holds": f"scontrol hold {job}",
            "admin sets Priority": f"scontrol update JobId={job} Priority={self.rng.choice([1, 1, 40000])}",
            "admin sets SiteFactor": f"scontrol update JobId={job} SiteFactor={self.rng.choice([-70001, 13, 70001])}",
            "user holds": f"scontrol uhold {job}",
            "user releases": f"runuser -u alice -- scontrol release {job}",
            "user changes nice": f"scontrol update JobId={job} Nice={self.rng.choice([0, 100])}",
            "user cancels": f"scancel {job}",
            "admin sets a negative nice": f"scontrol update JobId={job} Nice=-100",
            "admin moves to the top": f"scontrol top {job}",
            "admin changes the limit": f"scontrol update JobId={job} TimeLimit={self.rng.choice([1, 3000])}",
            "admin changes the size": f"scontrol update JobId={job} {self.rng.choice(['NumCPUs=4', 'Gres=gpu:2'])}",
            "admin changes the partition": f"scontrol update JobId={job} Partition={self.rng.choice(['gpu', 'share'])}",
            "admin changes the QOS": f"scontrol update JobId={job} QOS={self.rng.choice(['normal', 'high'])}",
            "admin favours a partition": (
                f"scontrol update PartitionName=share PriorityJobFactor={self.rng.choice([1, 300])}"
            ),
            "admin requeues": "scontrol requeue $(squeue -h -t R -o %A | head -1)",
            "admin requeues and holds": "scontrol requeuehold $(squeue -h -t R -o %A | tail -1)",
        }
        if held:
            acts["admin releases"] = f"scontrol release {self.rng.choice(held)}"
        name = self.rng.choice(sorted(acts))
        done = self.project.execute(f"cd /tmp; timeout 10 {acts[name]}", check=False)
        self.people[name] += 1
        if done.returncode:
            return
        if name == "admin holds":
            self.held_by_admin.add(job)
        elif name == "admin sets Priority":
            self.ledger.admins[job] = self.now()
        elif name == "admin releases":
            self.held_by_admin.discard(int(acts[name].split()[-1]))

    # --- faults: each is begun, lasts a while, and is ended

    def lasting(self, shortest: float, longest: float) -> None:
        """Time in which the fault is there; people go on."""
        until = time.monotonic() + self.rng.uniform(shortest, longest)
        while time.monotonic() < until:
            if self.rng.random() < 0.4 and self.answers():
                self.somebody()
            time.sleep(1.0)

    def start_slurmctld(self) -> None:
        """Starts it and waits until it answers and its nodes are back."""
        self.sh("pgrep -x 'slurmctld(-wlm)?' >/dev/null || slurmctld -i")
        ready = "scontrol ping | grep -q UP && ! sinfo -h -N -o '%T' | grep -qE 'unk|[*]'"
        if not self.wait(
            lambda: self.project.execute(f"timeout 10 bash -c {shlex.quote(ready)}", check=False).returncode == 0, 120.0
        ):
            raise TestbedError("slurmctld does not come back")

    def slurmctld_killed(self) -> None:
        """Kill -9: comes back with what it saved last."""
        self.sh("pkill -KILL -x 'slurmctld(-wlm)?'")
        self.ledger.crashed(self.now())
        time.sleep(self.rng.choice([0.0, 2.0, 15.0]))
        self.start_slurmctld()

    def slurmctld_restarted(self) -> None:
        """In order: nothing is lost."""
        self.sh(testbed.END_SLURMCTLD)
        time.sleep(self.rng.choice([0.0, 5.0, 20.0]))
        self.start_slurmctld()

    def slurmctld_loses_its_state(self) -> None:
        """The queue is gone, ids start over."""
        self.sh("pkill -KILL -x 'slurmctld(-wlm)?'; sleep 0.5; rm -rf /var/spool/slurmctld/*")
        self.read_log()
        self.ledger = Ledger()
        self.held_by_admin.clear()
        self.start_slurmctld()

    def slurmctld_frozen(self) -> None:
        """SIGSTOP: connections are taken and not answered; what was sent is carried out later."""
        self.sh("pkill -STOP -x 'slurmctld(-wlm)?'")
        time.sleep(self.rng.uniform(2.0, 40.0))
        self.sh("pkill -CONT -x 'slurmctld(-wlm)?'")

    def slurmdbd_away(self) -> None:
        """Frozen: sacctmgr hangs."""
        self.sh("pkill -STOP -x slurmdbd", service="dbd")
        self.lasting(5.0, 20.0)
        self.sh("pkill -CONT -x slurmdbd", service="dbd")

    def network(self, target: str) -> None:
        """Between rltuned's user and slurmctld."""
        rule = f"OUTPUT -p tcp --dport 6817 -m owner --uid-owner rltuned -j {target}"
        self.sh(f"iptables -I {rule}")
        self.lasting(5.0, 30.0)
        self.sh(f"iptables -D {rule}")

    def disk_full(self) -> None:
        """The state directory takes nothing more; its mirror does."""
        self.sh("dd if=/dev/zero of=/dev/shm/soak-fill bs=64k 2>/dev/null; true")
        self.lasting(5.0, 20.0)
        self.sh("rm -f /dev/shm/soak-fill")

    def mirror_gone(self) -> None:
        """/run was emptied."""
        self.sh(f"rm -rf {MIRROR}/*")
        self.lasting(2.0, 8.0)

    def daemon_killed(self) -> None:
        """Kill -9 at a random moment; the unit restores and starts it again, or it is only started again."""
        time.sleep(self.rng.uniform(0.0, INTERVAL))
        self.kill("KILL")
        if self.rng.random() < 0.5:
            self.restore()
        self.start()

    def restore_killed(self) -> None:
        """The daemon is stopped, and the unit's restore killed on its way."""
        self.kill("TERM")
        seconds = self.rng.uniform(0.3, 6.0)
        self.sh(
            f"timeout -s KILL {seconds} runuser -u rltuned -- {self.rltuned('restore')} >/dev/null 2>&1", check=False
        )
        self.sh("pkill -KILL -u rltuned -f 'rltuned restore' || true")
        if self.rng.random() < 0.5:
            self.given_back_by(self.restore)
        self.start()

    def power_cut(self) -> None:
        """Daemon and slurmctld are killed together, the heartbeat is lost; the dead-man timer gives the queue back."""
        self.sh("pkill -KILL -u rltuned -f 'bin/rltuned run'; pkill -KILL -x 'slurmctld(-wlm)?'")
        self.ledger.crashed(self.now())
        self.kill("KILL")
        self.sh(f"rm -f {STATE}/heartbeat.json {MIRROR}/heartbeat.json")
        self.start_slurmctld()
        self.given_back_by(self.deadman)
        self.start()

    def another_stage(self) -> None:
        """Stopped without the unit's restore, and started in a stage that writes nothing: leftovers are given back."""
        # A heartbeat that a killed daemon left keeps the dead-man timer away for 300 s, which is too long for a short
        # run.
        killed = self.rng.random() < (0.5 if self.minutes >= LONG else 0.0)
        self.kill("KILL" if killed else "TERM")
        self.stage = self.rng.choice(["shadow", "observe", "active"])
        self.dry_run = self.stage == "active" or self.rng.random() < 0.3
        self.configure()
        self.start()
        self.given_back_by(self.deadman, BOUND + 330.0 if killed and self.dry_run else BOUND)
        self.kill("TERM")
        self.stage, self.dry_run = "active", False
        self.configure()
        self.start()

    def reloaded(self) -> None:
        """SIGHUP with another configuration, and back; the limiter may change."""
        if self.rng.random() < 0.3:
            self.tight = not self.tight
            self.limiter()
        self.stage = self.rng.choice(["shadow", "canary", "active"])
        self.configure()
        if self.stage not in WRITING:
            self.not_writing = self.now() + 2 * INTERVAL
        self.kill("HUP")
        if self.stage not in WRITING:
            self.given_back_by(lambda: None)
        else:
            self.lasting(5.0, 12.0)
        self.stage, self.not_writing = "active", None
        self.configure()
        self.kill("HUP")

    def privilege_lost(self) -> None:
        """The admin level is taken away, and given again."""
        self.sh("sacctmgr -i modify user rltuned set AdminLevel=None", check=False)
        self.lasting(8.0, 25.0)
        self.sh("sacctmgr -i modify user rltuned set AdminLevel=Operator")

    def clock_jumps(self) -> None:
        """The wall clock of rltuned's processes is set, and set back; the dead-man timer runs meanwhile."""
        self.set_clock(self.rng.choice(["+3600", "-3600", "+400", "-30"]))
        self.lasting(6.0, 12.0)
        self.deadman()
        self.lasting(3.0, 6.0)
        self.set_clock("+0")

    def configuration_changes(self) -> None:
        """Scontrol reconfigure, a partition down, a node drained."""
        self.sh("scontrol reconfigure", check=False)
        node, part = self.rng.choice(["k80-1", "p100-2"]), self.rng.choice(["gpu", "share"])
        self.sh(
            f"scontrol update NodeName={node} State=DRAIN Reason=soak; scontrol update PartitionName={part} State=DOWN"
        )
        self.lasting(4.0, 12.0)
        self.sh(
            f"scontrol update NodeName={node} State=RESUME; scontrol update PartitionName={part} State=UP", check=False
        )

    def restore_by_name(self) -> None:
        """An admin has one job given back beside the daemon."""
        jobs = self.pending()
        if jobs:
            job = self.rng.choice(jobs)
            done = self.project.execute(f"{self.rltuned('restore')} {job}", check=False)
            if done.returncode == 0:
                self.ledger.named[job] = self.now()

    def catalogue(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """Faults by name: weight, and what is done."""
        faults: dict[str, tuple[int, Callable[[], None]]] = {
            "slurmctld killed": (3, self.slurmctld_killed),
            "slurmctld restarted": (2, self.slurmctld_restarted),
            "slurmctld without its state": (1, self.slurmctld_loses_its_state),
            "slurmctld frozen": (2, self.slurmctld_frozen),
            "slurmdbd away": (2, self.slurmdbd_away),
            "network cut": (2, lambda: self.network("DROP")),
            "network refused": (2, lambda: self.network("REJECT --reject-with tcp-reset")),
            "state directory full": (2, self.disk_full),
            "mirror gone": (1, self.mirror_gone),
            "daemon killed": (4, self.daemon_killed),
            "restore killed": (3, self.restore_killed),
            "power cut": (3, self.power_cut),
            "another stage": (3, self.another_stage),
            "reloaded": (2, self.reloaded),
            "privilege lost": (2, self.privilege_lost),
            "configuration changes": (2, self.configuration_changes),
            "restore by name": (1, self.restore_by_name),
        }
        if self.faketime:
            faults["clock jumps"] = (2, self.clock_jumps)
        return faults

    # --- invariants

    def given_back_by(self, act: Callable[[], object], bound: float = BOUND) -> None:
        """Within the bound nothing of rltuned's is on any job that sprio shows; `act` is tried again and again."""
        self.checks["given back"] += 1
        left: dict[int, int] = {}

        def free() -> bool:
            act()
            self.read_log()
            left.clear()
            left.update(self.carried())
            return not left and self.answers()

        if not self.wait(free, bound, 2.0):
            journal = self.sh(f"tail -n 3 {STATE}/journal.jsonl | cut -c1-300", check=False)
            self.violation(
                "given back", f"after {BOUND:.0f} s jobs still carry {dict(list(left.items())[:8])}; {journal}"
            )

    def check(self) -> None:
        """What must be so after each fault."""
        self.read_log()
        if self.alive:
            self.checks["alive"] += 1
            if not self.pid():
                self.violation("alive", f"the daemon has ended by itself: {self.log_tail()}")
                self.start()
            before = self.cycles()
            if not self.wait(lambda: self.cycles() >= before + 2, 90.0):
                self.violation("alive", f"no two cycles within 90 s after '{self.last_fault}': {self.log_tail()}")
            self.check_bounds()
            if self.stage in WRITING and not self.dry_run:
                self.check_wanted()
                self.check_never_below()
        self.read_log()

    def check_wanted(self) -> None:
        """What carries a value of rltuned's is raised by its last plan, or about to be given back, and is in the
        book.
        """
        self.checks["wanted"] += 1
        left: dict[str, dict[int, int]] = {}

        def kept(name: str) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(self.sh(f"cat {STATE}/{name}", check=False) or "{}")
            return found

        def all_wanted() -> bool:
            self.read_log()
            carried = self.carried()
            try:
                raised = {one[0] for one in kept("decision.json").get("raises", [])}
                offers = set(map(int, kept("loans.json").get("book", {}).get("offers", [])))
            except ValueError:
                return False
            carried = {job: value for job, value in carried.items() if job in self.pending()}
            left["wanted"] = {job: value for job, value in carried.items() if job not in raised}
            left["lent for"] = {job: value for job, value in carried.items() if job not in offers}
            return not any(left.values())

        if not self.wait(all_wanted, BOUND, 3.0):
            for invariant, jobs in left.items():
                if jobs:
                    self.violation(invariant, f"not so within {BOUND:.0f} s: {dict(list(jobs.items())[:8])}")

    def check_never_below(self) -> None:
        """No raised job stands below what Slurm alone gives, for longer than from one calculation to the next."""
        self.checks["never below"] += 1
        below: dict[int, tuple[int, int, int]] = {}

        def none_below() -> bool:
            self.read_log()
            text = self.sh(
                "timeout 20 sprio -h -o '%i %S %Y'; echo; timeout 20 squeue -h -t PD -o '%A %Q'", check=False
            )
            terms, _, queue = text.partition("\n\n")
            shown = {int(job): int(value) for job, value in (row.split() for row in queue.splitlines())}
            below.clear()
            for row in terms.splitlines():
                job, factor, total = map(int, row.split())
                ours = factor > 0 and self.ledger.ours(job, factor)
                if ours and job in shown and shown[job] < total - factor - ROUNDING:
                    below[job] = shown[job], total, factor
            return not below

        if not self.wait(none_below, BOUND, 3.0):
            self.violation("never below", f"priority, sum and site factor of jobs: {dict(list(below.items())[:8])}")

    def check_bounds(self) -> None:
        """Memory, threads, descriptors, journal."""
        self.checks["bounded"] += 1
        text = self.sh(
            f"pid=$(pgrep -u rltuned -f 'bin/rltuned run' | tail -1); grep -E 'VmRSS|Threads' /proc/$pid/status;"
            f" echo files: $(ls /proc/$pid/fd | wc -l); echo journal: $(stat -c %s {STATE}/journal.jsonl)",
            check=False,
        )
        numbers = {name: int(value) for name, value in re.findall(r"(\w+):\s*(\d+)", text)}
        numbers["VmRSS"] = numbers.get("VmRSS", 0) * 1024
        limits = {"VmRSS": MOST_RSS, "Threads": MOST_THREADS, "files": MOST_FILES, "journal": MOST_JOURNAL}
        for name, most in limits.items():
            self.peak[name] = max(self.peak.get(name, 0), numbers.get(name, 0))
            if numbers.get(name, 0) > most:
                self.violation("bounded", f"{name} is {numbers[name]}, more than {most}")

    # --- the run

    @contextlib.contextmanager
    def daemon(self) -> Iterator[None]:
        """A busy cluster with the daemon on it; in the end all is given back."""
        self.log_offset = int(self.sh("stat -c %s /var/log/slurm/slurmctld.log"))
        self.install(clock=self.clock)
        self.sh("for user in alice bob carol dave; do scancel -u $user; done; sleep 1", check=False)
        self.keep_busy()
        self.start()
        try:
            yield
        finally:
            self.set_clock("+0")
            self.sh("rm -f /dev/shm/soak-fill; iptables -F OUTPUT", check=False)
            self.sh("pkill -CONT -x slurmdbd", service="dbd", check=False)
            self.sh(
                "pkill -CONT -x 'slurmctld(-wlm)?'; cp /etc/slurm/slurm.conf.testbed /etc/slurm/slurm.conf", check=False
            )
            self.kill("TERM")
            self.restore()
            undo = "scontrol reconfigure; sacctmgr -i modify user rltuned set AdminLevel=Operator; scontrol update"
            self.sh(
                f"{undo} NodeName=k80-1,p100-2 State=RESUME; scontrol update PartitionName=gpu,share State=UP",
                check=False,
            )

    def run(self) -> None:
        """Fault after fault until the time is over."""
        with self.daemon():
            self.check()
            while time.monotonic() - self.began < 60.0 * self.minutes:
                faults = self.catalogue()
                name = self.rng.choices(list(faults), weights=[weight for weight, _ in faults.values()])[0]
                self.last_fault = name
                self.tell(name)
                for _ in range(self.rng.randint(0, 2)):
                    if self.answers():
                        self.somebody()
                faults[name][1]()
                self.faults[name] += 1
                self.check()
                self.keep_busy()
            self.last_fault = "the end"
            self.kill("TERM")
            self.given_back_by(self.restore)
            # What was hidden under a hold shows when it is released.
            self.sh(
                "squeue -h -t PD -o '%A %r' | awk '/JobHeld/{print $1}' | xargs -r -n 50 scontrol release", check=False
            )
            time.sleep(5.0)
            self.given_back_by(lambda: None)
            self.read_log()
            if not self.checks["stands"]:
                self.violation("alive", f"rltuned wrote nothing at all, so nothing was tried: {self.log_tail()}")

    def summary(self) -> dict[str, Any]:
        """All that counts, for machines."""
        return {
            "slurm": self.project.release,
            "minutes": round((time.monotonic() - self.began) / 60.0, 1),
            "jobs": self.submitted,
            "cycles": self.cycles(),
            "faults": dict(self.faults),
            "people": dict(self.people),
            "checks": dict(self.checks),
            "races": self.races,
            "peak": self.peak,
            "clock_can_be_set": self.faketime,
            "violations": [asdict(found) for found in self.violations],
        }


def table(summary: dict[str, Any]) -> str:
    """All that counts, for people."""
    lines = [
        f"Slurm {summary['slurm']}: {summary['minutes']} minutes, {summary['jobs']} jobs, {summary['cycles']} cycles",
        "",
        *(f"  {name:<32}{count:>6}" for name, count in sorted(summary["faults"].items())),
        f"  {'faults':<32}{sum(summary['faults'].values()):>6}",
        f"  {'acts of admins and users':<32}{sum(summary['people'].values()):>6}",
        "",
        *(f"  checked: {name:<23}{count:>6}" for name, count in sorted(summary["checks"].items())),
        f"  {'in the very instant of a write':<32}{summary['races']:>6}",
        f"  {'violations':<32}{len(summary['violations']):>6}",
        "",
        "  at most: " + ", ".join(f"{name} {value}" for name, value in summary["peak"].items()),
        *(
            f"  {item['invariant']} (after {item['after']}, {item['at']} s): {item['text']}"
            for item in summary["violations"]
        ),
    ]
    return "\n".join(lines)


def main() -> int:
    """0, or 1 on violations or a testbed that does not work."""
    arguments = argparse.ArgumentParser(prog="testbed soak", description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    arguments.add_argument(
        "--project", type=str.lower, help="a cluster that is up (default: one is brought up, and removed)"
    )
    arguments.add_argument("--slurm", choices=testbed.SUITES, default=testbed.DEFAULT_RELEASE)
    arguments.add_argument("--minutes", type=float, default=10.0)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--json", type=Path, help="where the summary goes, for machines")
    arguments.add_argument(
        "--fixed-clock", action="store_true", help="leave the clock alone: nothing is installed for it"
    )
    options = arguments.parse_args()
    try:
        if options.project:
            project, mine = testbed.discover(options.project), False
        else:
            testbed.ensure_engine()
            name = f"rltuned-soak-{options.slurm.replace('.', '')}"
            project, mine = testbed.Project(name, options.slurm, testbed.build(options.slurm)), True
            project.up()
        soak = Soak(project, options.seed, options.minutes, clock=not options.fixed_clock)
        try:
            soak.run()
            summary = soak.summary()
        finally:
            if mine:
                project.down()
    except TestbedError as error:
        say(str(error))
        return 1
    print(table(summary))
    if options.json:
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return 1 if summary["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
