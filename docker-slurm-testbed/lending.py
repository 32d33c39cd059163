#!/usr/bin/env python3
"""What lending does on a real Slurm: an hour of a long queue, and what is promised of it, measured from outside.

    docker-slurm-testbed/testbed lending --slurm 24.11 --minutes 60 --json LENDING.json

Keeps 300 jobs of six users waiting, and an array of 200 tasks. Fair share decides, Slurm's RPC limiter has its defaults
where the release has one, and backfill's passes take as long as on a large site. The installed daemon steers as an
operator, with its defaults but for the cycle; it is killed in between. Prints how much was written, whether any job
ever stood below what Slurm alone gives it, how many raised jobs were in force, how long `rltuned restore` takes, and
how far the book of loans agrees with the accounting. Ends with 1 where a promise is broken.

What Slurm shows is read with `sprio` and `squeue`, what was written in slurmctld's own log, and the book in the
daemon's file, each time that it changes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import random
import re
import shlex
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import testbed
from testbed import OPERATOR_UID, USERS, TestbedError, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

CONFIG: Final = "/etc/rltuned/config.toml"
STATE: Final = "/var/lib/rltuned"
RLTUNED: Final = "/opt/rltuned/venv/bin/rltuned"
LOG: Final = "/var/log/rltuned-lending.log"
BOOKS: Final = "/tmp/lending-books"  # noqa: S108  # of a container
SLURMCTLD_LOG: Final = "/var/log/slurm/slurmctld.log"
CONF: Final = "/etc/slurm/slurm.conf"

MORE_USERS: Final = {"erin": ("physics", 2021), "frank": ("biology", 2022)}
"""Account and number of those that the testbed does not have."""
WAITING: Final = 300
"""Jobs that are kept waiting."""
TASKS: Final = 200
"""Of the array."""
SHAPES: Final = {
    "--gres=gpu:1": 40,
    "--gres=gpu:2": 12,
    "--gres=gpu:p100:1": 10,
    "--gres=gpu:p100:2": 8,
    "--gres=gpu:p100:4": 6,
    "--gres=gpu:k80:2": 6,
    "-N2 --gres=gpu:p100:4": 3,
    "--gres=gpu:m40:1": 3,
    "-n8": 8,
}
"""What jobs ask for, and how often."""
SLACK: Final = (1.2, 2.0, 4.0, 8.0)
"""Time limits over run times."""
LOOK: Final = 10.0
"""Seconds from one look at the queue to the next."""
ROUNDING: Final = 2
"""Points by which sprio's sum and squeue's priority may differ: Slurm cuts each of them off."""
LONG: Final = 15.0
"""Minutes from which on priorities are calculated as seldom as by default, and the daemon is killed twice."""
SECOND: Final = 1.0
"""By which Slurm's whole seconds may be early."""
ALIKE: Final = 0.02
"""By which share the book may differ from the accounting."""
MOST_RESTORE: Final = 10.0
"""Seconds that a restore of everything may take, but for the pass of backfill whose end it waits for."""
FACTOR: Final = re.compile(r"_update_job: setting AdinPrioFactor to (\d+) for JobId=(\d+)")
COMPLETE: Final = re.compile(r"\[([0-9T:.-]+)\] _slurm_rpc_update_job: complete JobId=(\d+)\S* uid=(\d+)")
POWERED_UP: Final = re.compile(r"Resetting JobId=(\d+)(?:_\d+\((\d+)\))? start time for node power up")
"""A job has got nodes that were switched on for it: its start becomes the moment at which they are up."""
FACTOR_ZERO: Final = 0x80000000
"""slurmctld's log shows the site factor with this added."""
SEPARATOR: Final = "-- next --"


def slurm_conf(minutes: float) -> dict[str, str | None]:
    """What differs from the testbed's slurm.conf: as sites have it, as far as the length of the run allows."""
    return {
        "PriorityWeightFairshare": "100000",
        "PriorityWeightAge": "1000",
        **{f"PriorityWeight{name}": "0" for name in ("JobSize", "Partition", "QOS")},
        "PriorityWeightTRES": None,
        "PriorityCalcPeriod": "5" if minutes >= LONG else "1",
        # After a millisecond of work backfill sleeps for two seconds: a pass over this queue takes as long as one over
        # thousands of jobs, and what is written meanwhile may be undone by it.
        "SchedulerParameters": "bf_interval=30,bf_continue,bf_yield_interval=1000,bf_yield_sleep=2000000",
    }


class Write(NamedTuple):
    """Of rltuned's."""

    at: float
    """Epoch seconds."""
    job: int
    factor: int


class Look(NamedTuple):
    """Jobs that wait, by id, at one moment. Of several partitions the highest counts."""

    at: float
    """Epoch seconds."""
    priority: dict[int, int]
    """That squeue shows."""
    factor: dict[int, int]
    """Site factor by sprio, of jobs that two readings around squeue's show alike."""
    alone: dict[int, int]
    """sprio's sum without it."""


@dataclass
class Measured:
    """All that was seen."""

    looks: int = 0
    missed: int = 0
    """Looks at which something did not answer."""
    readings: int = 0
    """Of jobs' priorities."""
    below: int = 0
    """Readings of jobs below all that Slurm alone has given them lately."""
    older: int = 0
    """Readings with a priority of Slurm's own of before the last calculation: backfill has put it back."""
    raised: int = 0
    """Readings of raised jobs, and …"""
    undone: int = 0
    """… those without what raises them: likewise."""
    least: int = 0
    """Site factor that was seen or written."""
    wanted: list[int] = field(default_factory=list)
    """Raised jobs that the last plan wants and that wait, at each look …"""
    in_force: list[int] = field(default_factory=list)
    """… and those that squeue shows before the first job that they pass."""
    waiting: list[int] = field(default_factory=list)
    kills: list[dict[str, Any]] = field(default_factory=list)
    restore: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Promises."""


class Lending:
    """One run."""

    profile = "paper"
    shapes = SHAPES

    def __init__(self, project: testbed.Project, options: argparse.Namespace) -> None:
        """Nothing is started yet. `options`: of the command line."""
        self.project = project
        self.minutes: float = options.minutes
        self.interval: float = options.interval
        self.share: float = options.share
        self.runs: float = options.runs
        self.policy: str = options.policy
        self.rng = random.Random(options.seed)  # noqa: S311  # jobs to repeat, no secret
        self.began = time.monotonic()
        self.seen = Measured()
        self.own: dict[int, deque[tuple[float, int]]] = defaultdict(deque)
        """By job: when Slurm alone gave it which priority."""
        self.carried: set[int] = set()
        """Jobs that were seen with a site factor."""
        self.conf = self.slurm_conf()
        self.users = (*USERS, *MORE_USERS)
        # A pass of backfill may end after the calculation that it began before; what it puts back stays until the next.
        self.memory = 2.0 * 60.0 * float(self.conf.get("PriorityCalcPeriod") or 5) + 120.0
        self.log_offset = 0
        self.since = 0.0
        """Epoch seconds of the start."""

    def slurm_conf(self) -> dict[str, str | None]:
        """What differs from the profile's slurm.conf."""
        return slurm_conf(self.minutes)

    # --- commands

    def sh(self, script: str, *, service: str = "ctl", check: bool = True) -> str:
        """A shell script in a container; its output."""
        return self.project.execute(script, service=service, check=check).stdout

    def tell(self, text: str) -> None:
        """A line about progress."""
        say(f"{time.monotonic() - self.began:6.0f} s  {text}")

    @staticmethod
    def wait(condition: Callable[[], object], seconds: float, what: str) -> None:
        """Waits for a condition. Raises TestbedError: it does not come about."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                message = f"not within {seconds:.0f} s: {what}"
                raise TestbedError(message)
            time.sleep(0.3)

    # --- the cluster

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Slurm as `slurm_conf` says, and six users; put back at the end."""
        nodes = [service for service in self.services() if service not in {"dbd", "login"}]
        passwd = "".join(f"{name}:x:{uid}:{uid}::/tmp:/bin/bash\n" for name, (_, uid) in MORE_USERS.items())
        names = "|".join(MORE_USERS)
        for service in nodes:
            self.project.execute("cat >>/etc/passwd", service=service, text_input=passwd)
        added = "".join(
            f"add user {name} account={account} cluster=testbed\n" for name, (account, _) in MORE_USERS.items()
        )
        self.project.execute("sacctmgr -i >/dev/null", text_input=added, check=False)  # they may be there
        lines = "".join(f"{name}={value}\n" for name, value in self.conf.items() if value is not None)
        replaced = "|".join(f"{name}=" for name in self.conf) or "$"
        self.project.execute(f"(cat; grep -vE '^({replaced})' {CONF}.testbed) >{CONF}", text_input=lines)
        self.restart_slurmctld()
        try:
            yield
        finally:
            everybody = "; ".join(f"scancel -u {name}" for name in self.users)
            self.sh(f"{everybody}; cp {CONF}.testbed {CONF}", check=False)
            self.restart_slurmctld()
            self.wait(lambda: not self.sh("squeue -h", check=False).strip(), 120.0, "the queue is empty")
            removed = "".join(f"delete user {name}\n" for name in MORE_USERS)
            self.project.execute("sacctmgr -i >/dev/null", text_input=removed, check=False)
            for service in nodes:
                self.sh(f"grep -vE '^({names}):' /etc/passwd >/etc/passwd.new; cat /etc/passwd.new >/etc/passwd",
                        service=service, check=False)  # fmt: skip

    def services(self) -> list[str]:
        """Of the cluster."""
        label = f"label=com.docker.compose.project={self.project.name}"
        shown = ["docker", "ps", "--filter", label, "--format", '{{.Label "com.docker.compose.service"}}']
        return testbed.run(shown).stdout.split()

    def restart_slurmctld(self) -> None:
        """It saves its jobs, and takes its configuration."""
        self.sh(f"{testbed.END_SLURMCTLD}; slurmctld -i")
        ready = "scontrol ping | grep -q UP && ! sinfo -h -N -o '%T' | grep -qE 'unk|[*]'"
        self.wait(lambda: self.project.execute(ready, check=False).returncode == 0, 120.0, "slurmctld is back")

    # --- jobs

    def job(self, user: str) -> str:
        """One sbatch command; run times are log-normal."""
        shape = self.rng.choices(list(self.shapes), weights=list(self.shapes.values()))[0]
        seconds = self.interval * min(max(self.runs * self.rng.lognormvariate(0.0, 0.8), 0.5), 8.0 * self.runs)
        return self.command(user, shape, seconds)

    def command(self, user: str, shape: str, seconds: float) -> str:
        """As root, in a user's name."""
        limit = math.ceil(seconds * self.rng.choice(SLACK) / 60.0)
        return f"sbatch --parsable --uid={user} -o /dev/null {shape} -t {limit} --wrap='sleep {seconds:.1f}'"

    def keep_waiting(self) -> None:
        """More jobs where too few wait; another array where all tasks of the last one have started."""
        rows = [row.split() for row in self.sh("squeue -h -t PD -o '%A %F %K'", check=False).splitlines()]
        waiting, arrays = {row[0] for row in rows}, {row[1] for row in rows if row[2] != "N/A"}
        self.seen.waiting.append(len(waiting))
        commands = [self.job(self.rng.choice(self.users)) for _ in range(max(WAITING - len(waiting), 0))]
        if not arrays:
            # Each of its tasks is seen running.
            whose = self.rng.choice(self.users)
            commands.append(self.command(whose, f"--gres=gpu:1 --array=1-{TASKS}", 1.5 * self.interval))
        if commands:
            self.project.execute("bash -s", text_input="cd /tmp\n" + "\n".join(commands) + "\n")

    # --- the daemon

    def install(self) -> None:
        """A wheel of this source tree, as an operator would, with the defaults but for the cycle and the share."""
        self.install_program()
        settings: Mapping[str, Mapping[str, Any]] = {
            "cycle": {"interval": self.interval, "stage": "active"},
            "lend": {"share": self.share},
            **({"policy": {"name": self.policy}} if self.policy else {}),
            "estimates": {"refresh": max(self.interval, 10.0)},
            "metrics": {"listen": ""},
            "log": {"format": "json", "level": "debug"},
        }
        lines = []
        for name, values in settings.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        self.project.execute(f"cat >{CONFIG}", text_input="\n".join(lines) + "\n")
        self.sh(f"install -o rltuned -g rltuned -m 640 /dev/null {LOG}; runuser -u rltuned -- {RLTUNED} config check")
        # Each version of the book, one in a line.
        watch = (
            f"rm -rf {BOOKS}*; while sleep 0.4; do cmp -s {STATE}/loans.json {BOOKS}.last || "
            f"{{ cp {STATE}/loans.json {BOOKS}.last && cat {BOOKS}.last >>{BOOKS} && echo >>{BOOKS}; }}; done"
        )
        self.sh(f"nohup setsid bash -c {shlex.quote(watch)} lending-books >/dev/null 2>&1 </dev/null &")

    def install_program(self) -> None:
        """The wheel."""
        self.project.install_rltuned()

    def start(self) -> None:
        """``systemctl start rltuned``; its first cycle is over."""
        before = len(self.cycles())
        self.sh(f"nohup setsid runuser -u rltuned -- {RLTUNED} run >>{LOG} 2>&1 </dev/null &")
        self.wait(lambda: len(self.cycles()) > before, 2.0 * self.interval + 60.0, f"a cycle: {self.log_tail()}")

    def end(self, signal: str) -> None:
        """Ends the daemon."""
        alive = "pgrep -u rltuned -f 'bin/rltuned run' >/dev/null"
        self.sh(f"pkill -{signal} -u rltuned -f 'bin/rltuned run'; while {alive}; do sleep 0.1; done", check=False)

    def events(self) -> list[dict[str, Any]]:
        """The daemon's log."""
        found = []
        for line in self.sh(f"cat {LOG}").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def cycles(self) -> list[dict[str, Any]]:
        """Cycles so far."""
        return [event for event in self.events() if event.get("event") == "cycle.done"]

    def log_tail(self) -> str:
        """The last lines."""
        return self.sh(f"tail -n 3 {LOG} | cut -c1-400", check=False).strip().replace("\n", " | ")

    # --- what is seen

    def look(self) -> Look:
        """The queue now."""
        sprio = "sprio -h -o '%i %S %Y'"
        text = self.sh(
            f"date +%s.%N; echo {SEPARATOR}; {sprio}; echo {SEPARATOR}; squeue -h -t PD -o '%A %Q'; "
            f"echo {SEPARATOR}; {sprio}",
        )
        now, first, queue, second = (part.strip().splitlines() for part in text.split(SEPARATOR))
        before, after = _sums(first), _sums(second)
        alike = {job: sums for job, sums in before.items() if after.get(job) == sums}
        priority: dict[int, int] = {}
        for row in queue:
            job, value = map(int, row.split())
            priority[job] = max(value, priority.get(job, 0))
        return Look(
            float(now[0]),
            priority,
            {job: factor for job, (factor, _) in alike.items() if job in priority},
            {job: max(total - factor, 1) for job, (factor, total) in alike.items() if job in priority},
        )

    def take_in(self) -> None:
        """One look: is any job below its own, and are the raised ones where the last plan wants them?"""
        seen, look = self.seen, self.look()
        seen.looks += 1
        seen.readings += len(look.alone)
        seen.least = min(seen.least, *look.factor.values(), 0)
        for job, alone in look.alone.items():
            shown, factor, lately = look.priority[job], look.factor[job], self.own[job]
            lately.append((look.at, alone))
            while lately[0][0] < look.at - self.memory:
                lately.popleft()
            if factor:
                self.carried.add(job)
            seen.raised += factor > 0
            # One of an earlier calculation with our value on it is in force, too.
            seen.undone += factor > 0 and all(shown < value + factor - ROUNDING for _, value in lately)
            if shown < alone - ROUNDING:
                # Nobody saw what Slurm gave it between its submission and the first look: backfill puts that back, too.
                known = job in self.carried or lately[0][0] < look.at - self.memory + 2.0 * LOOK
                below = known and shown < min(value for _, value in lately) - ROUNDING
                seen.below += below
                seen.older += not below
                if below:
                    self.tell(f"job {job}: {shown} in squeue, by Slurm alone {list(lately)}, factor {factor}")
        with contextlib.suppress(ValueError):  # before the first decision
            record = json.loads(self.sh(f"cat {STATE}/decision.json", check=False) or "{}")
            if record:
                raised = [one for one in record["raises"] if one[0] in look.priority and one[1] in look.priority]
                seen.wanted.append(len(raised))
                seen.in_force.append(sum(look.priority[job] >= look.priority[first] for job, first, *_ in raised))

    def log(self) -> str:
        """slurmctld's, since the start."""
        return self.sh(f"tail -c +{self.log_offset + 1} {SLURMCTLD_LOG}")

    def written(self) -> list[Write]:
        """The writes of rltuned's user, by slurmctld's log."""
        pending: dict[int, list[int]] = defaultdict(list)
        found = []
        for line in self.log().splitlines():
            if match := FACTOR.search(line):
                pending[int(match[2])].append(int(match[1]) - FACTOR_ZERO)
            elif match := COMPLETE.match(line):
                at = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp()
                job, values = int(match[2]), pending.pop(int(match[2]), [])
                found += [Write(at, job, value) for value in values if int(match[3]) == OPERATOR_UID]
        return found

    # --- the run

    def kill(self) -> None:
        """Kill -9, and a start some seconds later: nothing is lost."""
        before, book = self.look(), self.book()
        self.end("KILL")
        lines, began = len(self.events()), time.monotonic()
        time.sleep(3.0)
        self.start()
        after, events = self.look(), self.events()[lines:]
        said = Counter(event["event"] for event in events)
        cycle = next(event for event in events if event.get("event") == "cycle.done")
        kept = {job for job, factor in before.factor.items() if factor > 0 and job in after.factor}
        killed = {
            "carried": sum(map(bool, before.factor.values())),
            "carried_after": sum(map(bool, after.factor.values())),
            "open_loans": len(book["loans"]),
            "open_loans_after": len(self.book()["loans"]),
            "seconds_until_a_cycle": round(time.monotonic() - began, 1),
            "outcome": cycle["outcome"],
            "changes": cycle["changes"],
            "book_lost": said["loans.lost"],
            "foreign": said["job.foreign"],
            "orphaned": said["jobs.orphaned"],
        }
        self.seen.kills.append(killed)
        self.tell(f"killed and started again: {killed}; {len(kept)} of the raised jobs still wait")
        if killed["outcome"] != "done" or killed["book_lost"] or killed["foreign"] or killed["orphaned"]:
            self.seen.broken.append(f"kill -9: {killed}")

    def book(self) -> dict[str, Any]:
        """The book of loans, as the daemon has kept it."""
        found: dict[str, Any] = json.loads(self.sh(f"cat {STATE}/loans.json"))["book"]
        return found

    def restore(self) -> None:
        """The daemon stops, and ``rltuned restore`` gives everything back."""
        self.end("TERM")
        carried = sum(map(bool, self.look().factor.values()))
        report = self.project.execute(
            f"TIMEFORMAT=%R; time runuser -u rltuned -- {RLTUNED} restore --json", check=False
        )
        seconds = float(report.stderr.split()[-1])
        left = {job: factor for job, factor in self.look().factor.items() if factor}
        told = json.loads(report.stdout)
        outlasted = round(told["outlasted"], 3)
        self.seen.restore = {"carried": carried, "restored": len(told["restored"]), "left": left}
        self.seen.restore |= {"seconds": seconds, "of_these_backfill": outlasted}
        if left or not told["complete"]:
            self.seen.broken.append(f"after a restore jobs carry {left}: {told}")
        if seconds - outlasted > MOST_RESTORE:
            self.seen.broken.append(f"the restore took {seconds} s, {outlasted} s of them for a pass of backfill")

    def run(self) -> dict[str, Any]:
        """Everything; all that counts, for machines."""
        with self.prepared():
            self.since = float(self.sh("date +%s"))
            self.keep_waiting()
            self.install()
            self.log_offset = int(self.sh(f"stat -c %s {SLURMCTLD_LOG}"))
            try:
                self.start()
                self.steer()
                self.restore()
            finally:
                self.end("KILL")
                self.sh("pkill -f lending-books", check=False)
            written = self.written()
            self.seen.least = min(self.seen.least, 0, *(write.factor for write in written))
            raised = {job for job, factor in {write.job: write.factor for write in written}.items() if factor > 0}
            agreement = agree(books(self.sh(f"cat {BOOKS}")), self.accounting(), raised)
            return self.summary(written, agreement)

    def steer(self) -> None:
        """The daemon steers, for so many minutes."""
        began = time.monotonic()
        kills = [0.5, 0.75] if self.minutes >= LONG else [0.6]
        while (left := 60.0 * self.minutes - (time.monotonic() - began)) > 0:
            looked = time.monotonic()
            if kills and left < 60.0 * self.minutes * (1.0 - kills[0]):
                kills.pop(0)
                self.kill()
            try:
                self.take_in()
                self.keep_waiting()
            except TestbedError as error:  # a machine that is busy: Slurm has not answered in time
                self.seen.missed += 1
                self.tell(f"not seen: {error}")
            if self.seen.looks % 30 == 1:
                self.tell(f"{self.seen.waiting[-1]} wait; {self.cycles()[-1]['sentence']}")
            time.sleep(max(0.0, LOOK - (time.monotonic() - looked)))

    def accounting(self) -> dict[int, Run]:
        """The jobs, and tasks of arrays, that have started."""
        powered_up = {int(task or job) for job, task in POWERED_UP.findall(self.log())}
        since = self.sh(f"date -d @{self.since:.0f} +%Y-%m-%dT%H:%M:%S").strip()
        columns = "JobIDRaw,Start,ElapsedRaw,State"
        rows = self.sh(f"SLURM_TIME_FORMAT=%s sacct -nPXaD -S {since} -o {columns}").splitlines()
        found = {}
        for row in rows:
            job, start, elapsed, state = row.split("|")
            if job.isdigit() and start.isdigit():
                # Of several runs of a job (preempted, requeued) the book's is not told. Of one whose nodes were
                # switched on for it nothing tells when it left the queue.
                before, unclear = found.get(int(job)), int(job) in powered_up
                first = 0.0 if unclear else float(start) if before is None else min(before.first, float(start))
                ended = before is None and not unclear and state != "RUNNING"
                found[int(job)] = Run(float(start), float(elapsed), ended, first)
        return found

    def summary(self, written: Sequence[Write], agreement: Agreement) -> dict[str, Any]:
        """All that counts."""
        seen, cycles = self.seen, self.cycles()
        ends = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in cycles]
        by_cycle = Counter(bisect_left(ends, write.at) for write in written)
        writes = sorted(by_cycle[nth] for nth in range(len(cycles)))  # what comes after the last one, restore wrote
        if seen.least < 0:
            seen.broken.append(f"a SiteFactor of {seen.least}")
        if seen.below:
            seen.broken.append(f"{seen.below} readings of jobs below what Slurm alone gives")
        if not sum(seen.wanted):
            seen.broken.append("no job was raised: nothing was tried")
        if agreement.settled and abs(agreement.difference) > ALIKE:
            apart = "; ".join(agreement.apart)
            seen.broken.append(f"the book of loans differs from the accounting by {agreement.difference:+.1%}: {apart}")
        if agreement.missing:
            seen.broken.append(
                f"{len(agreement.missing)} jobs started raised, and nobody lends: {'; '.join(agreement.missing)}"
            )
        return {
            "slurm": self.project.release,
            "minutes": self.minutes,
            "interval": self.interval,
            "runs": self.runs,
            "policy": next(event["sentence"] for event in self.events() if event["event"] == "daemon.started"),
            "share": self.share,
            "cycles": len(cycles),
            "cycles_done": sum(one["outcome"] == "done" for one in cycles),
            "waiting_mean": _mean(seen.waiting),
            "writes": {
                "mean": _mean(writes),
                "p99": writes[math.ceil(0.99 * len(writes)) - 1],
                "most": writes[-1],
                "total": sum(writes),
            },
            "throttled": sum(one["changes"].get("throttled", 0) for one in cycles),
            "cycle_seconds": {"mean": _mean([sum(one["seconds"].values()) for one in cycles])},
            "least_site_factor": seen.least,
            "looks": seen.looks,
            "missed": seen.missed,
            "readings": seen.readings,
            "below_own": seen.below,
            "put_back_by_backfill": {"own": seen.older, "raised": seen.undone},
            "raised_readings": seen.raised,
            "raised_wanted_mean": _mean(seen.wanted),
            "raised_in_force_mean": _mean(seen.in_force),
            "restore": seen.restore,
            "kills": seen.kills,
            "book": agreement.as_dict(),
            "broken": seen.broken,
        }


def _sums(rows: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Site factor and sum of each job; of several partitions, of the one with the highest sum."""
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        job, factor, total = map(int, row.split())
        if job not in found or total > found[job][1]:
            found[job] = factor, total
    return found


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0


# --- the book and the accounting ---------------------------------------------------------------


class Run(NamedTuple):
    """Of a job, by the accounting."""

    start: float
    """Epoch seconds."""
    seconds: float
    ended: bool
    first: float
    """Start of its first run: it may have been preempted, or requeued, since. 0: unclear."""


class Loan(NamedTuple):
    """Of one borrower, as the book has it."""

    start: float
    used: float
    """Seconds; −1: it runs."""
    parts: dict[int, float]
    """GPUs by lender."""


class Book(NamedTuple):
    """One version of the book."""

    time: float
    offers: dict[int, dict[int, float]]
    """GPUs by lender, by raised job."""
    arrays: frozenset[int]
    """Raised jobs of which several tasks wait."""
    loans: dict[int, Loan]
    given: dict[int, tuple[float, int, list[int]]]
    """GPU-seconds that each lender gave to borrowers that have ended, their number, and the last of them."""


@dataclass
class Agreement:
    """How far the book agrees with the accounting, over the loans that were settled while their lenders waited."""

    settled: int = 0
    by_book: float = 0.0
    """GPU-seconds."""
    by_sacct: float = 0.0
    """GPU-seconds: what the borrowers really ran, times the GPUs that were lent to them."""
    unknown: int = 0
    """Loans that are not compared: nothing tells which run was settled."""
    started: int = 0
    """Jobs that started raised, by slurmctld's log, with a lender that waits on …"""
    missing: list[str] = field(default_factory=list)
    """… and those of them for which the book has no loan, for people."""
    apart: list[str] = field(default_factory=list)
    """Where the two differ by more than a GPU-second, for people."""

    @property
    def difference(self) -> float:
        """Of the book, as a share of the accounting."""
        return self.by_book / self.by_sacct - 1.0 if self.by_sacct else 0.0

    def as_dict(self) -> dict[str, float]:
        """JSON-able form."""
        return {
            "started_raised": self.started,
            "without_a_loan": len(self.missing),
            "settled": self.settled,
            "not_compared": self.unknown,
            "gpu_seconds_by_book": round(self.by_book, 1),
            "gpu_seconds_by_sacct": round(self.by_sacct, 1),
            "difference": round(self.difference, 5),
        }


def books(text: str) -> list[Book]:
    """All versions, from lines of JSON."""
    found = []
    for line in filter(None, text.splitlines()):
        data = json.loads(line)["book"]
        found.append(
            Book(
                data["time"],
                {int(job): _by_lender(_for_one(offer[-2], offer[3])) for job, offer in data["offers"].items()},
                frozenset(int(job) for job, offer in data["offers"].items() if offer[1] > 1),
                {int(job): Loan(loan[3], loan[4], _by_lender(loan[6])) for job, loan in data["loans"].items()},
                {int(job): (given[1], given[2], given[3]) for job, given in data["given"].items()},
            )
        )
    return found


def _for_one(parts: Sequence[Sequence[float]], size: float) -> Iterator[tuple[float, float, float]]:
    """What is lent for one task of those that an offer is for: the first parts, until its size is covered."""
    for lender, submitted, gpus in parts:
        if size > 0:
            yield lender, submitted, min(gpus, size)
            size -= gpus


def _by_lender(parts: Iterable[Sequence[float]]) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for lender, _, gpus in parts:
        found[int(lender)] += gpus
    return dict(found)


def agree(versions: Sequence[Book], runs: Mapping[int, Run], raised: AbstractSet[int]) -> Agreement:
    """Compares what was settled from each version of the book to the next with what the borrowers really used.

    Args:
        versions: of the book, in the order of time.
        runs: by job.
        raised: jobs that carried a raise when they left the queue.
    """
    found = Agreement()
    nothing: tuple[float, int, list[int]] = (0.0, 0, [])
    for before, after in itertools.pairwise(versions):
        for lender, (seconds, count, borrowers) in after.given.items():
            known, known_count, _ = before.given.get(lender, nothing)
            new = count - known_count
            # The book names only the last.
            over = {job for job, loan in before.loans.items() if lender in loan.parts and job not in after.loans}
            over |= set(borrowers[-new:] if new else ())
            amounts = [_used(before, after, lender, job, runs) for job in over]
            if len(amounts) != new or None in amounts:
                found.unknown += new
            elif new:
                found.settled += new
                by_sacct = sum(filter(None, amounts))
                found.by_book += seconds - known
                found.by_sacct += by_sacct
                if abs(seconds - known - by_sacct) > 1.0:
                    amount = f"{seconds - known:.1f} by the book, {by_sacct:.1f} by sacct"
                    found.apart.append(f"{lender} lent {amount} to {sorted(over)} until {after.time:.0f}")
    borrowed = {job for book in versions for job in book.loans}
    borrowed |= {job for book in versions for _, _, borrowers in book.given.values() for job in borrowers}
    lenders = {job: parts for book in versions for job, parts in book.offers.items()}
    for job in sorted(raised & runs.keys() & lenders.keys()):
        later = next((book.time for book in versions if book.time > runs[job].start + SECOND), math.inf)
        # Of one that has run before nothing tells whether it waited then.
        waiting = [lender for lender in lenders[job] if lender not in runs or runs[lender].first > later]
        if waiting and later < math.inf:
            found.started += 1
            if job not in borrowed:
                began = {lender: runs[lender].first if lender in runs else None for lender in lenders[job]}
                found.missing.append(f"{job}: {runs[job]}; lenders, and when they started: {began}; book at {later}")
    return found


def _used(before: Book, after: Book, lender: int, borrower: int, runs: Mapping[int, Run]) -> float | None:
    """GPU-seconds by the accounting of a run that was settled between two versions; None: nobody knows which it was."""
    loan, run = before.loans.get(borrower), runs.get(borrower)
    gpus = (before.offers.get(borrower, {}) if loan is None else loan.parts).get(lender)
    # Of tasks that came and went between two readings nobody knows more than how long that took.
    unseen = loan is None and borrower in before.arrays
    if run is None or not run.ended or gpus is None or unseen or borrower in after.offers:
        return None
    return gpus * run.seconds


# --- for people --------------------------------------------------------------------------------


def table(summary: Mapping[str, Any]) -> str:
    """All that counts, for people."""
    writes, book, restore = summary["writes"], summary["book"], summary["restore"]
    undone, difference = summary["put_back_by_backfill"], f"{book['difference']:+.2%}"
    rows = {
        "cycles, of these done": (summary["cycles"], summary["cycles_done"]),
        "writes a cycle: mean, 99 %, most": (writes["mean"], writes["p99"], writes["most"]),
        "writes in all": (writes["total"],),
        "put off for the RPC limiter": (summary["throttled"],),
        "seconds of a cycle, mean": (summary["cycle_seconds"]["mean"],),
        "least SiteFactor": (summary["least_site_factor"],),
        "looks, missed, readings of jobs": (summary["looks"], summary["missed"], summary["readings"]),
        "of these below Slurm's own": (summary["below_own"],),
        "put back by backfill: all, raised, of": (undone["own"], undone["raised"], summary["raised_readings"]),
        "raised: wanted, in force, mean": (summary["raised_wanted_mean"], summary["raised_in_force_mean"]),
        "restore: jobs, seconds, of these backfill's": (
            restore["carried"],
            restore["seconds"],
            restore["of_these_backfill"],
        ),
        "started raised, without a loan": (book["started_raised"], book["without_a_loan"]),
        "loans settled, not compared": (book["settled"], book["not_compared"]),
        "GPU-seconds by book, by sacct": (book["gpu_seconds_by_book"], book["gpu_seconds_by_sacct"], difference),
    }
    head = f"Slurm {summary['slurm']}: {summary['minutes']:g} minutes, cycles of {summary['interval']:g} s"
    head += f", run times of {summary['runs']:g} cycles"
    lines = [f"{head}, lend.share {summary['share']:g}, {summary['waiting_mean']:.0f} jobs waiting"]
    lines += [summary["policy"], ""]
    lines += [f"  {name:<36}{', '.join(map(str, values))}" for name, values in rows.items()]
    lines += [f"  kill -9: {', '.join(f'{name} {value}' for name, value in kill.items())}" for kill in summary["kills"]]
    return "\n".join([*lines, *(f"  BROKEN: {text}" for text in summary["broken"])])


def main(kind: type[Lending] = Lending) -> int:
    """0, or 1 where a promise is broken or the testbed does not work."""
    name = kind.__name__.lower()
    about = sys.modules[kind.__module__].__doc__ or ""
    arguments = argparse.ArgumentParser(prog=f"testbed {name}", description=about.split("\n\n", maxsplit=1)[0])
    arguments.add_argument(
        "--project", type=str.lower, help="a cluster that is up (default: one is brought up, and removed)"
    )
    arguments.add_argument("--slurm", choices=testbed.SUITES, default=testbed.DEFAULT_RELEASE)
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--interval", type=float, default=60.0, help="seconds of a cycle (default: %(default)s)")
    arguments.add_argument("--runs", type=float, default=6.0, help="median run time, cycles (default: %(default)s)")
    arguments.add_argument("--share", type=float, default=0.1, help="lend.share (default: %(default)s)")
    arguments.add_argument("--policy", default="", help="policy.name (default: the daemon's)")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--json", type=Path, help="where the summary goes, for machines")
    options = arguments.parse_args()
    try:
        if options.project:
            project, mine = testbed.discover(options.project), False
        else:
            testbed.ensure_engine()
            name = f"rltuned-{name}-{options.slurm.replace('.', '')}"
            project, mine = testbed.cluster(name, options.slurm, profile=kind.profile), True
            project.up()
        try:
            summary = kind(project, options).run()
        finally:
            if mine:
                project.down()
    except TestbedError as error:
        say(str(error))
        return 1
    print(table(summary))
    if options.json:
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return 1 if summary["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
