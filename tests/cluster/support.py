"""What the tests on real Slurm clusters share: the `Cluster`, its controller, its ways to break.

A `Cluster` is one compose project of docker-slurm-testbed, of one release of Slurm. Commands run as
root in the container `ctl` unless told otherwise. Jobs are submitted by root in a user's name
(`sbatch --uid`), because the RPC rate limiter, which is on, would let a user submit two a second.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from cluster.shell import Shells
from packaging.requirements import Requirement
from testbed import built_wheel

ROOT = Path(__file__).resolve().parents[2]
TESTBED = ROOT / "docker-slurm-testbed"
RELEASES = ("22.05", "24.11", "26.05")


def _wanted_releases() -> tuple[str, ...]:
    wanted = tuple(os.environ.get("RLTUNED_TEST_SLURM", ",".join(RELEASES)).split(","))
    if unknown := set(wanted) - set(RELEASES):
        raise pytest.UsageError(f"RLTUNED_TEST_SLURM: {sorted(unknown)} not in {RELEASES}")
    return wanted


WANTED = _wanted_releases()
NEWEST = WANTED[-1]
OLD_AND_NEW = tuple(dict.fromkeys((WANTED[0], NEWEST)))
on_one_release = pytest.mark.parametrize("cluster", [NEWEST], indirect=True)
"""For a test of what rltuned does by itself (its lock, its files), whichever Slurm there is."""
on_the_oldest = pytest.mark.parametrize("cluster", [WANTED[0]], indirect=True)
"""Likewise: the releases share what takes long."""

NODES = ("k80-1", "k80-2", "m40-1", "p100-1", "p100-2")
MIXED_NODES = ("auto1", "core1", "cpu1", "maint1", "mig1", "multi1", "plain1", "resv1", "shard1", "smt1")
"""Nodes of the profile "mixed" that are always up; docker-slurm-testbed/README.md."""
PAIR_NODES = ("n0", "n1", "n2", "n3")
NODES_OF = {"paper": NODES, "mixed": MIXED_NODES, "pair": PAIR_NODES}
"""By the testbed's profile."""
POWER_OFF = "/run/no-power"
"""While this file is there, in the service `mixed`, none of its cloud nodes comes up."""
USERS = ("alice", "bob", "carol", "dave")
OPERATOR = "rltuned"
UNPRIVILEGED = "visitor"
RLTUNED = "/opt/rltuned/venv/bin/rltuned"
PYTHON = f"{RLTUNED.rpartition('/')[0]}/python"

SCRIPT = ("bash", "-s")
"""A command that runs what it is given on its standard input."""
OTHER_CONF = "cmp -s /etc/slurm/slurm.conf /etc/slurm/slurm.conf.testbed || echo other slurm.conf"
# Slurm settings for Cluster.conf, each a thing that doctor must recognise. None takes a line out.
PRIORITY_BASIC: Mapping[str, str | None] = {"PriorityType": "priority/basic"}
SITE_FACTOR_PLUGIN: Mapping[str, str | None] = {"PrioritySiteFactorPlugin": "site_factor/example"}
# Without slurmdbd Slurm has no gres/gpu TRES, hence no weight on it either.
NO_SLURMDBD: Mapping[str, str | None] = {
    "AccountingStorageType": "accounting_storage/none",
    "AccountingStorageHost": None,
    "AccountingStorageTRES": None,
    "AccountingStorageEnforce": None,
    "PriorityWeightTRES": None,
    "PriorityWeightFairshare": None,
}


class CommandFailedError(AssertionError):
    """A command in a container that had to succeed did not."""


SESSION = "RLTUNED_TEST_SESSION"
"""In the environment: the process id of the pytest that started the workers."""


def session_name() -> str:
    """What the names of all clusters of this session begin with, unless RLTUNED_TEST_PROJECT names them."""
    return f"rltuned-test-{os.environ.get(SESSION, os.getpid())}-"


def succeed(*words: str, env: Mapping[str, str] | None = None) -> str:
    """What a program of this machine says that must succeed."""
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise CommandFailedError(f"{shlex.join(words)[:500]}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def run_testbed(*args: str) -> str:
    return succeed(str(TESTBED / "testbed"), *args, env={**os.environ, "PYTHON": sys.executable})


@cache
def image_of(release: str, target: str = "slurm") -> str:
    """Name of an image of the testbed, which is built where it is missing."""
    return run_testbed("build", "--slurm", release, "--target", target).strip()


PATIENCE = 300.0
"""Seconds after which what a test waits for is taken not to come. No test depends on it: it only ends one that
hangs."""


def wait_until(
    condition: Callable[[], object], what: str | Callable[[], str], *, pause: float = 0.1, patience: float = PATIENCE
) -> None:
    """Waits for a condition; a test fails with `what` when it does not come about within `patience` seconds.

    Most conditions run a program in a container, which takes the processor from what is waited for: the longer it has
    taken, the longer are the pauses, up to two seconds.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > patience:
            raise AssertionError(f"not within {patience:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(max(pause, min(0.15 * waited, 2.0)))


@dataclass
class Background:
    """A program running in a container, started by `Cluster.background`."""

    cluster: "Cluster"
    service: str
    stem: str

    @property
    def pid(self) -> int:
        return int(self.cluster.sh(f"cat {self.stem}.pid", service=self.service).stdout)

    def output(self) -> str:
        """What it has written so far, standard output and error together."""
        return self.cluster.sh(f"cat {self.stem}.log", service=self.service, check=False).stdout

    def returncode(self) -> int | None:
        """Its exit status (128 + n when signal n ended it); None while it runs."""
        text = self.cluster.sh(f"cat {self.stem}.rc 2>/dev/null || true", service=self.service).stdout.strip()
        return int(text) if text else None

    def kill(self, signal: str = "TERM") -> None:
        self.cluster.sh(f"kill -{signal} $(cat {self.stem}.pid)", service=self.service, check=False)

    def wait(self) -> int:
        wait_until(lambda: self.returncode() is not None, f"{self.stem} ends")
        code = self.returncode()
        assert code is not None
        return code


@dataclass(frozen=True)
class RpcCounts:
    """`sdiag`'s counters since slurmctld's start or `reset_rpc_counts`; Slurm has no table of both."""

    by_type: dict[str, int]
    by_user: dict[str, int]

    @property
    def job_updates(self) -> int:
        writes = ("REQUEST_UPDATE_JOB", "REQUEST_SUSPEND", "REQUEST_CANCEL_JOB_STEP", "REQUEST_KILL_JOB")
        return sum(self.by_type.get(name, 0) for name in writes)


STOP_SECONDS = 90.0
"""After which a slurmctld that was told to end is killed, as systemd does it: 22.05 has been seen to hang."""


class Controller:
    """slurmctld: stopped, frozen and started again while its container lives on."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster

    def running(self) -> bool:
        """Whether the process exists (it may be frozen)."""
        return self._cluster.sh("pgrep -x 'slurmctld(-wlm)?' >/dev/null", check=False).returncode == 0

    def answers(self) -> bool:
        """Whether it answers a client within two seconds."""
        return self._cluster.sh("timeout 2 scontrol ping", check=False).returncode == 0

    def stop(self, signal: str = "TERM") -> None:
        """Ends slurmctld: TERM saves its state, KILL does not."""
        self._cluster.sh(f"pkill -{signal} -x 'slurmctld(-wlm)?' || true")

        def ended() -> bool:
            # One that is told to end between two connections may first wait for another one, at rest for good.
            self.answers()
            return not self.running()

        try:
            wait_until(ended, "slurmctld ends", patience=STOP_SECONDS)
        except AssertionError:
            threads = "for thread in /proc/$(pgrep -o slurmctld)/task/*; do cat $thread/{comm,wchan}; echo; done"
            seen = f"{threads}; tail -n 30 /var/log/slurm/slurmctld.log"
            sys.stdout.write(self._cluster.sh(seen, check=False).stdout)
            if signal == "KILL":
                raise
            self.stop("KILL")

    def start(self, *, wipe_state: bool = False) -> None:
        """Starts slurmctld and waits until it answers and every node is back."""
        if wipe_state:
            self._cluster.sh("rm -rf /var/spool/slurmctld/*")
        # -i: 26.05 refuses to start when it was killed before it first saved its usage (five minutes after its start).
        self._cluster.note_conf(self._cluster.sh(f"slurmctld -i && {{ {OTHER_CONF}; }}").stdout)
        self.wait_ready()

    def wait_saved(self) -> None:
        """Waits until all that it knows of its jobs is on its disk: a change is saved within five seconds.

        Needs a job. Its comment is changed, again and again, because nothing is saved where nothing has changed.
        """
        job = next(iter(self._cluster.states()))
        mark = "/tmp/saved-before"
        self._cluster.sh(f"touch {mark}")
        newer = f"scontrol update JobId={job} Comment=saved-$RANDOM && test /var/spool/slurmctld/job_state -nt {mark}"
        wait_until(lambda: self._cluster.sh(newer, check=False).returncode == 0, "slurmctld saves its jobs")

    def restart(self, *, wipe_state: bool = False) -> None:
        self.stop()
        self.start(wipe_state=wipe_state)

    def freeze(self) -> None:
        """SIGSTOP: connections are accepted and never answered."""
        self._cluster.sh("pkill -STOP -x 'slurmctld(-wlm)?'")

    def thaw(self) -> None:
        self._cluster.sh("pkill -CONT -x 'slurmctld(-wlm)?'")

    def wait_ready(self) -> None:
        """Waits until it answers and no node is unknown or unresponsive."""
        ready = "scontrol ping >/dev/null && ! sinfo -h -N -o '%T' | grep -qE 'unk|\\*'"
        wait_until(lambda: self._cluster.sh(ready, check=False).returncode == 0, "slurmctld and its nodes are back")


@dataclass
class Cluster:
    """One running cluster of the testbed."""

    release: str
    project: str
    nodes: tuple[str, ...] = NODES
    """Those that are idle when nothing runs."""
    _containers: dict[str, str] = field(default_factory=dict)
    _conf_changed: bool = False
    _blocked: set[str] = field(default_factory=set)
    _installed: set[str] = field(default_factory=set)
    _partitions: str = ""
    _background: int = 0

    def __post_init__(self) -> None:
        self.slurmctld = Controller(self)
        self._shells = Shells()

    def close(self) -> None:
        """Ends the shells that it has in its containers."""
        self._shells.close()

    # --- commands ---

    def container(self, service: str = "ctl") -> str:
        """The id of a service's container: dbd, ctl, login, or a node's name."""
        if service not in self._containers:
            labels = f"label=com.docker.compose.project={self.project}", f"label=com.docker.compose.service={service}"
            command = ["docker", "ps", "-q", *(part for label in labels for part in ("--filter", label))]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            if len(found) != 1:
                raise AssertionError(f"{self.project} has {len(found)} containers of the service {service}")
            self._containers[service] = found[0]
        return self._containers[service]

    def run(
        self,
        args: Sequence[str],
        *,
        user: str = "root",
        service: str = "ctl",
        input: str | None = None,  # noqa: A002  # subprocess.run's own name
        env: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a container; one that fails is a CommandFailedError unless check is False."""
        setting = [f"{key}={value}" for key, value in (env or {}).items()]
        script = input if args == SCRIPT else shlex.join(["exec", *(["env", *setting] if setting else []), *args])
        code, out, err = self._shells.run(
            self.container(service), user, script or "", "" if args == SCRIPT else input or "", timeout
        )
        done = subprocess.CompletedProcess(args, code, out, err)
        if check and done.returncode != 0:
            shown = shlex.join(args)[:500]
            raise CommandFailedError(
                f"{shown} as {user}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done

    def sh(
        self, script: str, *, user: str = "root", service: str = "ctl", check: bool = True, timeout: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell script (of any length) in a container."""
        return self.run(SCRIPT, user=user, service=service, input=script, check=check, timeout=timeout)

    def background(
        self,
        args: Sequence[str],
        *,
        user: str = OPERATOR,
        service: str = "ctl",
        env: Mapping[str, str] | None = None,
        cwd: str = "/tmp",
    ) -> Background:
        """Starts a program and lets it run; `reset` ends what is left of it."""
        self._background += 1
        stem = f"/tmp/background-{user}-{self._background}"
        inner = (
            f"rm -f {stem}.*; {shlex.join(args)} >{stem}.log 2>&1 & echo $! >{stem}.pid; wait $!; echo $? >{stem}.rc"
        )
        command = ["docker", "exec", "-d", "-u", user, "-w", cwd]
        for key, value in (env or {}).items():
            command += ["-e", f"{key}={value}"]
        subprocess.run([*command, self.container(service), "bash", "-c", inner], check=True, capture_output=True)
        started = Background(self, service, stem)
        wait_until(lambda: self.sh(f"test -s {stem}.pid", service=service, check=False).returncode == 0, "it starts")
        return started

    def copy_in(self, source: Path, target: str, *, service: str = "ctl", owner: str = "root") -> None:
        """Copies a file or folder of the host into a container; target is its new path."""
        subprocess.run(
            ["docker", "cp", str(source), f"{self.container(service)}:{target}"], check=True, capture_output=True
        )
        self.run(["chown", "-R", owner, target], service=service)

    def write_file(self, path: str, text: str, *, service: str = "ctl", owner: str = "root", mode: str = "644") -> None:
        quoted = shlex.quote(path)
        self.run(["bash", "-c", f"cat >{quoted}"], service=service, input=text)
        self.sh(f"chown {owner} {quoted} && chmod {mode} {quoted}", service=service)

    def read_file(self, path: str, *, service: str = "ctl") -> str:
        return self.run(["cat", path], service=service).stdout

    # --- jobs ---

    def submit(self, user: str, *args: str, command: str = "sleep 600") -> int:
        return self.submit_many([(user, *args)], command=command)[0]

    def submit_many(self, jobs: Iterable[Sequence[str]], *, command: str = "sleep 600") -> list[int]:
        """Submits (user, sbatch argument, ...) tuples in that order, and returns the job ids."""
        lines = ["set -e", "cd /tmp"]
        for user, *args in jobs:
            words = ["sbatch", "--parsable", f"--uid={user}", "-o", "/dev/null", *args]
            lines.append(shlex.join([*words, f"--wrap={command}"]))
        done = self.sh("\n".join(lines))
        return [int(word.split(";")[0]) for word in done.stdout.split()]

    def workload(self, jobs: int = 300, seed: int = 1, longest: int = 600) -> None:
        """Submits the testbed's mix: sizes, types, arrays, dependencies, begin times, users, QOS, partitions."""
        options = ["--project", self.project, "--jobs", str(jobs), "--seed", str(seed), "--longest", str(longest)]
        run_testbed("workload", *options)

    def fill(self, user: str = "dave") -> int:
        """Occupies every node wholly, so that what is submitted next stays pending; returns the job id."""
        job = self.submit(
            user, "-p", "urgent", f"-N{len(self.nodes)}", "--exclusive", "-t", "1-0", command="sleep 86400"
        )
        self.wait_state(job, "RUNNING")
        return job

    def queue_longest_first(self, count: int = 8) -> list[int]:
        """Jobs of one user that wait, behind full nodes, each shorter than the one before it: Slurm alone would start
        them as submitted, shortest first is the other way round."""
        self.fill()
        # No two of a size: so their priorities are not the same, and there is room for a raised job between two.
        jobs = [(USERS[0], "--gres=gpu:1", f"-c{count - n}", "-t", str(15 * count - 10 * n)) for n in range(count)]
        ids = self.submit_many(jobs)
        self.wait_sprio(ids)
        return ids

    def wait_state(self, job: int, state: str) -> None:
        """Waits until a job is in a state, as squeue's %T spells it."""
        query = f"squeue -h -t all -j {job} -o %T 2>/dev/null"
        wait_until(
            lambda: state in self.sh(query, check=False).stdout.split(), lambda: f"job {job} is {state}: {self.state()}"
        )

    def wait_accounted(self, jobs: Sequence[int]) -> None:
        """Waits until slurmdbd has these jobs as completed."""
        query = f"sacct -nPX -j {','.join(map(str, jobs))} -o State"

        def states() -> Counter[str]:
            return Counter(self.sh(query).stdout.splitlines())

        over = Counter({"COMPLETED": len(jobs)})
        wait_until(lambda: states() == over, lambda: f"slurmdbd has {dict(over)}: {dict(states())}, {self.state()}")

    def state(self) -> str:
        """What Slurm says of jobs (by state and reason) and of nodes, in one line: that of a test that fails."""
        script = "squeue -h -o '%T (%r)' | sort | uniq -c; sinfo -h -N -o '%N %T %E' | sort -u"
        return "; ".join(map(str.strip, self.sh(script, check=False).stdout.splitlines()))

    def cancel(self, *jobs: int) -> None:
        self.run(["scancel", *map(str, jobs)], check=False)

    def cancel_all(self) -> None:
        script = """
            n=0
            # A squeue that nobody answers, in the middle of a fail-over, is no empty queue.
            until queue=$(squeue -h -o %A) && [ -z "$queue" ]; do
                squeue -h -t PD,S -o '%A %F' | tr ' ' '\n' | sort -u | xargs -r -n 500 scancel 2>/dev/null
                [ $((n++ % 20)) = 0 ] &&
                    squeue -h -t R,CG -o %A | sort -u | xargs -r -n 500 scancel -f -s KILL 2>/dev/null
                sleep 0.1
                [ $n -lt 2000 ] || exit 9
            done
        """
        self.sh(script)

    def _jobs(self, column: str, states: str) -> dict[int, str]:
        rows = self.sh(f"squeue -h -t {states} -o '%A|{column}'").stdout.splitlines()
        return {int(row.split("|", 1)[0]): row.split("|", 1)[1] for row in rows}

    def priorities(self) -> dict[int, int]:
        """Priority of each pending job (an array: of its record)."""
        return {job: int(value) for job, value in self._jobs("%Q", "PD").items()}

    def size_terms(self) -> dict[int, int]:
        """What its size adds to the priority of each pending job (sprio's %J); held ones are not listed.

        For a job that gets whole nodes, 22.05 counts the CPUs of the node that its scheduler looked at last: it changes
        by itself.
        """
        rows = [row.split() for row in self.run(["sprio", "-h", "-o", "%i %J"], check=False).stdout.splitlines()]
        return {int(job): round(float(term)) for job, term in rows}

    def queue_order(self) -> list[int]:
        """Pending jobs as Slurm would try them within a tier: by priority, then by id."""
        priorities = self.priorities()
        return sorted(priorities, key=lambda job: (-priorities[job], job))

    def nice_values(self) -> dict[int, int]:
        return {job: int(value) for job, value in self._jobs("%y", "PD").items()}

    def states(self) -> dict[int, str]:
        """State of each job that has not ended."""
        return self._jobs("%T", "PD,R,CG,S,CF")

    def site_factors(self) -> dict[int, int]:
        """SiteFactor of the jobs that sprio lists (none held, none with an explicit priority)."""
        rows = [row.split() for row in self.run(["sprio", "-h", "-o", "%i %S"], check=False).stdout.splitlines()]
        return {int(job): int(value) for job, value in rows}

    def wait_sprio(self, jobs: Iterable[int]) -> None:
        """Waits until sprio lists the jobs (a new one appears at the next calculation)."""
        wanted = set(jobs)
        wait_until(lambda: wanted <= self.site_factors().keys(), f"sprio lists {sorted(wanted)}")

    def job(self, job: int) -> dict[str, str]:
        """`scontrol show job` as a dictionary (values with blanks are cut; no test needs one)."""
        text = self.run(["scontrol", "-o", "show", "job", str(job)]).stdout.splitlines()[0]
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def update(self, job: int | str, *changes: str, user: str = "root") -> None:
        self.run(["scontrol", "update", f"JobId={job}", *changes], user=user)

    # --- diagnostics ---

    def reset_rpc_counts(self) -> None:
        self.run(["sdiag", "-r"])

    def sdiag_rpc_counts(self) -> RpcCounts:
        tables: dict[str, dict[str, int]] = {"message type": {}, "user": {}}
        current: dict[str, int] = {}
        for line in self.run(["sdiag"]).stdout.splitlines():
            if heading := re.match(r"Remote Procedure Call statistics by (message type|user)", line):
                current = tables[heading[1]]
            elif line and not line.startswith((" ", "\t")):
                current = {}
            elif row := re.match(r"\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)", line):
                current[row[1]] = int(row[2])
        return RpcCounts(by_type=tables["message type"], by_user=tables["user"])

    def backfill_passes(self) -> int:
        """Passes that the backfill scheduler has finished since the counters were set to zero."""
        return int(self.sh("sdiag | sed -n '/^Backfilling/,$ s/.*Total cycles: //p'").stdout)

    # --- ways to break it ---

    @contextlib.contextmanager
    def conf(self, changes: Mapping[str, str | None] | None = None, **more: str | None) -> Iterator[None]:
        """Changes slurm.conf of the controller, restarts slurmctld, and puts both back at the end.

        `None` takes a setting out. The constants above name the usual changes. The queue is kept.
        """
        wanted = {**(changes or {}), **more}
        lines = self.read_file("/etc/slurm/slurm.conf.testbed").splitlines()
        kept = [line for line in lines if line.split("=", 1)[0] not in wanted]
        added = [f"{key}={value}" for key, value in wanted.items() if value is not None]
        self._conf_changed = True
        self.slurmctld.stop()
        self.write_file("/etc/slurm/slurm.conf", "\n".join([*added, *kept]) + "\n")
        self.slurmctld.start()
        try:
            yield
        finally:
            self._restore_conf()

    def scheduler_parameters(self, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> dict[str, str]:
        """A `SchedulerParameters` for conf(): the testbed's, with some taken out (by name) and some added."""
        line = next(
            line
            for line in self.read_file("/etc/slurm/slurm.conf.testbed").splitlines()
            if line.startswith("SchedulerParameters=")
        )
        kept = [value for value in line.split("=", 1)[1].split(",") if value.split("=")[0] not in remove]
        return {"SchedulerParameters": ",".join([*kept, *add])}

    def note_conf(self, said: str) -> None:
        """Remembers for `reset` that slurmctld has another slurm.conf than the testbed's, where OTHER_CONF said so.

        A slurmctld that was started with another one is never quite as new, whatever is reconfigured later: the
        backfill scheduler of 22.05 first sleeps for the bf_interval that it found, hours for one that is to be at rest.
        """
        self._conf_changed |= "other slurm.conf" in said

    def _restore_conf(self) -> None:
        self.slurmctld.stop("TERM")
        self.sh("cp /etc/slurm/slurm.conf.testbed /etc/slurm/slurm.conf")
        self.slurmctld.start()
        self._conf_changed = False

    def block_network(self, service: str = "ctl", *, refuse: bool = False) -> None:
        """Cuts a container's clients off slurmctld: packets vanish, or (refuse) are rejected."""
        target = "REJECT" if refuse else "DROP"
        self.sh(f"iptables -I OUTPUT -p tcp --dport 6817 -j {target}", service=service)
        self._blocked.add(service)

    def unblock_network(self) -> None:
        for service in self._blocked:
            self.sh("iptables -F OUTPUT", service=service)
        self._blocked.clear()

    def drain(self, *nodes: str, reason: str = "test") -> None:
        self.run(["scontrol", "update", f"NodeName={','.join(nodes)}", "State=DRAIN", f"Reason={reason}"])

    def start_host(self, service: str, target: str, *options: str) -> None:
        """Adds a container of another image of the testbed to this cluster: its network, its munge key; under a
        name."""
        command = ["docker", "run", "-d", "--network", f"{self.project}_default", "--hostname", service]
        command += ["--network-alias", service, "-v", f"{self.project}_munge:/etc/munge"]
        # compose takes it for one of its own that its file does not name: "down" removes it, were the test killed.
        labels = {"project": self.project, "service": service, "oneoff": "False", "config-hash": "none"}
        command += [part for key, value in labels.items() for part in ("--label", f"com.docker.compose.{key}={value}")]
        command += [*options, image_of(self.release, target)]
        self._containers[service] = succeed(*command).strip()

    def start_systemd_host(self) -> None:
        """Adds the host `systemd`: systemd is PID 1, munge runs, slurm.conf is the cluster's, no rltuned yet.

        Control groups are the machine's own (version 1 or 2), not a namespace of them: systemd makes its
        groups below the container's. Everything that takes `service=` works on it.
        """
        self.start_host(
            "systemd",
            "systemd",
            *("--cgroupns=host", "-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw"),
            *("--tmpfs", "/run", "--tmpfs", "/run/lock"),
            # Mounting is what a unit's sandbox is made of.
            *("--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
        )
        for path in ("/etc/slurm/slurm.conf", "/etc/slurm/gres.conf", "/etc/slurm/cgroup.conf"):
            self.write_file(path, self.read_file(path), service="systemd")
        up = "systemctl is-system-running --wait"
        wait_until(lambda: self.sh(up, service="systemd", check=False).stdout.strip() == "running", "systemd is up")
        self.sh("squeue -h", service="systemd")

    def start_prometheus(self, configuration: str) -> None:
        """Adds the host `prometheus`, running Debian's Prometheus with this configuration."""
        self.start_host("prometheus", "prometheus")
        self.write_file("/tmp/prometheus.yml", configuration, service="prometheus")
        self.background(
            [
                *("prometheus", "--config.file=/tmp/prometheus.yml", "--storage.tsdb.path=/tmp/data"),
                "--web.listen-address=127.0.0.1:9090",
            ],
            user="root",
            service="prometheus",
        )
        ready = ["promtool", "check", "ready", "--url=http://127.0.0.1:9090"]
        wait_until(lambda: self.run(ready, service="prometheus", check=False).returncode == 0, "Prometheus is ready")

    def query_prometheus(self, expression: str) -> list[dict[str, object]]:
        """The instant vector of an expression: [{"metric": labels, "value": [time, text]}, ...]."""
        query = ["promtool", "query", "instant", "-o", "json", "http://127.0.0.1:9090", expression]
        found: list[dict[str, object]] = json.loads(self.run(query, service="prometheus").stdout)
        return found

    def remove_host(self, service: str) -> None:
        """Takes away what `start_host` added, if it came that far."""
        if container := self._containers.pop(service, None):
            subprocess.run(["docker", "rm", "-f", container], check=False, capture_output=True)
        self._installed.discard(service)

    def reset(self) -> None:
        """As new for the next test: heals, empties the queue, undoes what a test changed."""
        self.unblock_network()
        # A daemon may run as slurm: one that outlived its test would go on steering.
        left = (
            f"pkill -KILL -u rltuned; pkill -KILL -u visitor; pkill -KILL -f ^{PYTHON}.*rltuned; "
            "rm -f /tmp/background-*"
        )
        self.note_conf(self.sh(f"pkill -CONT -x 'slurmctld(-wlm)?'; {left}; {OTHER_CONF}").stdout)
        self.sh(f"{left}; true", service="login")
        if self._conf_changed:
            self._restore_conf()
        elif not self.slurmctld.running():
            self.slurmctld.start()
        self.cancel_all()
        undo = r"""
            scontrol -o show reservation | sed -n 's/^ReservationName=\(\S*\).*/\1/p' | while read -r name; do
                scontrol delete ReservationName="$name"
            done
            if [ "$(sacctmgr -nP show user rltuned,visitor format=user,admin | tr '\n' ' ')" \
                != 'rltuned|Operator visitor|None ' ]; then
                sacctmgr -i modify user rltuned set AdminLevel=Operator >/dev/null
                sacctmgr -i modify user visitor set AdminLevel=None >/dev/null
            fi
            scontrol -o show partition | sort
        """
        partitions = self.sh(undo).stdout
        if not self._partitions:
            self._partitions = partitions
        elif partitions != self._partitions:
            # Takes the partitions of slurm.conf again, and drops those that a test made.
            again = ["scontrol", "reconfigure"]
            wait_until(lambda: self.run(again, check=False).returncode == 0, "slurmctld takes its configuration")
        # More than once: a slurmctld that has just taken over may still find a node down.
        resume = r"""
            sinfo -h -N -o '%N %T' | grep -E ' (drain|down|fail|unk|inval)' | sort -u | while read -r node _; do
                scontrol update NodeName="$node" State=RESUME
            done
            sinfo -h -N -t idle -o '%N %T'
        """

        def idle() -> bool:
            return {f"{node} idle" for node in self.nodes} <= set(self.sh(resume, check=False).stdout.splitlines())

        with contextlib.suppress(AssertionError):
            wait_until(idle, "every node is idle again", patience=PATIENCE / 5.0)
            return
        # One that took over while a job ended may hold the job's nodes until it starts anew, without a job.
        self.slurmctld.stop()
        self.slurmctld.start()
        try:
            wait_until(idle, "every node is idle again")
        except AssertionError as error:
            error.add_note(self.sh("sinfo -N -o '%N %T %E'; squeue -o '%i %T %N %r'", check=False).stdout)
            raise

    # --- the daemon ---

    def install_rltuned(self, *services: str) -> None:
        """Installs the current source tree, as a wheel, into the venv of containers (ctl and login). Once each."""
        wheel = built_wheel()
        for service in services or ("ctl", "login"):
            if service in self._installed:
                continue
            self.copy_in(wheel, f"/tmp/{wheel.name}", service=service)
            pip = "/opt/rltuned/venv/bin/pip install -q --no-deps --no-index --force-reinstall"
            self.sh(f"{pip} /tmp/{wheel.name} && rm /tmp/{wheel.name}", service=service)
            self._installed.add(service)

    def install_simulator(self, service: str = "ctl") -> None:
        """Installs the extra [simulate], which the images leave out, as locked."""
        if self.sh(f"{PYTHON} -c 'import numba'", service=service, check=False).returncode == 0:
            return
        version = self.sh(f"{PYTHON} -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'", service=service)
        self.copy_in(simulate_wheels(version.stdout.strip()), "/tmp/wheels", service=service)
        self.write_file("/tmp/simulate.lock", locked("dev"), service=service)
        pip = "/opt/rltuned/venv/bin/pip install -q --no-index --find-links /tmp/wheels --require-hashes"
        self.sh(f"{pip} -r /tmp/simulate.lock && rm -rf /tmp/wheels", service=service)


def locked(until: str) -> str:
    """The lines of requirements.lock above a part of it, as `sed` on the pages has them."""
    return (ROOT / "requirements.lock").read_text().partition(f"# {until}\n")[0]


@cache
def simulate_wheels(python: str) -> Path:
    """A directory with all that the extra [simulate] needs, as locked, for that Python ("3.11"); downloaded once per
    test session."""
    folder = Path(tempfile.mkdtemp(prefix="rltuned-simulate-"))
    # pip itself would judge the markers for the Python that it runs on; hashes are checked where these are installed.
    lines = (line.removesuffix(" \\") for line in locked("dev").splitlines() if "==" in line)
    asked = [Requirement(line) for line in lines if not line.startswith((" ", "#"))]
    there = {"python_version": python, "python_full_version": f"{python}.0"}
    names = [f"{each.name}{each.specifier}" for each in asked if each.marker is None or each.marker.evaluate(there)]
    wanted = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    wanted += [f"--platform=manylinux{of}_x86_64" for of in ("_2_28", "_2_17", "2014")]
    succeed(sys.executable, "-m", "pip", "download", "-q", "-d", str(folder), *wanted, *names)
    return folder
