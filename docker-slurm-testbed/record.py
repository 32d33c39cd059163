"""Records the answers of real Slurm releases under tests/recorded/, for the tests of the parsers.

Run it with the project's own Python: `.venv/bin/python docker-slurm-testbed/record.py [RELEASE ...]`.
It brings up a cluster of each release, puts every kind of job that is hard to read in its queue,
and keeps what each command line of `rltuned.slurm.commands` answers, word for word. The commands
are taken from that registry, so that a parser test reads exactly what production reads.

For each release:
    <name>.txt      standard output of the registry's command of that name, or of an extra one below
    jobs.json       label -> job id, user and sbatch arguments of each job in the queue
    failures.json   command lines that fail or warn: argv, user, input, return code, stdout, stderr
    <name>-mixed.txt, jobs-mixed.json   likewise, of the testbed's profile "mixed"; <name>-mixed-troubled.txt
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from cluster.support import (  # noqa: E402  # the path is set above: this is a script, not a package
    NO_SLURMDBD,
    PRIORITY_BASIC,
    RELEASES,
    Cluster,
    CommandFailedError,
    wait_until,
)

from rltuned.slurm.commands import EXCLUSIVE_SINCE, REGISTRY, environment  # noqa: E402  # as above

RECORDED: Final = ROOT / "tests" / "recorded"
BIN: Final = Path("/usr/bin")
_EVER: Final = ("--starttime=2020-01-01T00:00:00", "--endtime=2038-01-01T00:00:00")
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "privilege": ("user=rltuned",),
    "history": _EVER,
    "trace": _EVER,
    "events": ("Start=2020-01-01T00:00:00",),
}
"""The words of the registry's commands that are not fixed."""
WORKING_DIRECTORY: Final = "/"

HOSTILE_NAME: Final = "a|b,c=d\x1fe\x1b[31mf\nJobId=1 Priority=0 'x\" $(reboot) \\ é\t"

HOSTILE_NAMES: Final = ("a|b", "we ird;x", "dollar$(id)", "esc\x1b[31m", "tab\tx", "ümlaut", "p%c")

# Running first: (label, user, sbatch arguments). CPUs are counted so that afterwards no node has one left.
RUNNING: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("running typed", "alice", ("--gres=gpu:p100:2", "-w", "p100-1", "-c", "4", "-t", "120")),
    ("running array, two at a time", "alice", ("--array=1-20%2", "-w", "p100-1", "-t", "60")),
    ("running without limit", "dave", ("-p", "endless", "-t", "UNLIMITED", "-w", "p100-1")),
    ("running exclusive", "carol", ("--exclusive", "-w", "p100-2", "-t", "30")),
    ("running on two nodes", "bob", ("-N", "2", "-n", "2", "-c", "28", "--gres=gpu:k80:2", "-t", "1-0")),
    ("running without GPU", "carol", ("-n", "3", "-w", "m40-1", "-t", "10")),
    # The job above is suspended by now, which frees its CPUs.
    ("filler of m40-1", "dave", ("-w", "m40-1", "-c", "28", "-t", "600")),
    ("filler of p100-1", "dave", ("-w", "p100-1", "-c", "49", "-t", "600")),
)

PENDING: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("plain", "alice", ()),
    ("typed", "alice", ("--gres=gpu:p100:4",)),
    ("untyped", "bob", ("--gres=gpu:2",)),
    ("one GPU without a number", "bob", ("--gres=gpu",)),
    ("gpus", "carol", ("--gpus=3",)),
    ("gpus typed", "carol", ("--gpus=k80:4",)),
    ("gpus per node", "carol", ("--gpus-per-node=p100:2", "-N", "2")),
    ("gpus per task", "dave", ("-n", "3", "--gpus-per-task=1")),
    ("gpus per task typed", "dave", ("-n", "2", "--gpus-per-task=k80:1")),
    ("gpus per socket", "dave", ("--gpus-per-socket=1", "--sockets-per-node=2", "-n", "2", "-N", "1")),
    ("cpus and memory per GPU", "dave", ("--gpus=2", "--cpus-per-gpu=6", "--mem-per-gpu=8G")),
    ("two nodes typed", "alice", ("-N", "2", "--gres=gpu:p100:4")),
    ("node range", "alice", ("-N", "1-2", "--gpus=2")),
    ("tasks and threads", "alice", ("-n", "6", "-c", "2")),
    ("memory per CPU", "bob", ("--mem-per-cpu=3G", "-c", "4")),
    ("all memory", "bob", ("--mem=0",)),
    ("local disk", "bob", ("--tmp=50G",)),
    ("unlimited", "carol", ("-p", "endless", "-t", "UNLIMITED")),
    ("half a minute", "carol", ("-t", "0:30")),
    ("days", "carol", ("-t", "6-23:59:59")),
    ("exclusive", "alice", ("--exclusive", "-n", "1")),
    ("exclusive user", "alice", ("--exclusive=user",)),
    ("exclusive in a shared partition", "alice", ("--exclusive", "-p", "share")),
    ("oversubscribe", "alice", ("-s",)),
    ("oversubscribe in a shared partition", "alice", ("-s", "-p", "share")),
    ("default in a shared partition", "alice", ("-p", "share")),
    ("forced partition", "alice", ("-p", "force")),
    ("exclusive partition", "alice", ("-p", "excl")),
    ("two partitions", "bob", ("-p", "gpu,share")),
    ("partitions of two tiers", "bob", ("-p", "gpu,urgent,k80", "--gres=gpu:k80:1")),
    ("array", "carol", ("--array=1-20",)),
    ("array limited", "carol", ("--array=1-20%3",)),
    ("array with steps", "carol", ("--array=1-99:7",)),
    ("array of odd tasks", "carol", ("--array=" + ",".join(str(task) for task in range(1, 1200, 2)),)),
    ("array of one", "carol", ("--array=5",)),
    ("held by its user", "dave", ("--hold",)),
    ("begins later", "dave", ("--begin=now+1hour",)),
    ("nice", "alice", ("--nice=321",)),
    ("negative nice", "alice", ("--nice=-50",)),
    ("high QOS", "bob", ("--qos=high",)),
    ("low QOS", "bob", ("--qos=low",)),
    ("constraint or", "carol", ("--constraint=p100|k80",)),
    ("constraint and", "carol", ("--constraint=p100&gpu",)),
    ("constraint one of", "carol", ("--constraint=[p100|k80]", "-N", "2")),
    ("constraint count", "carol", ("--constraint=[p100*1&k80*1]", "-N", "2")),
    (
        "wants nodes",
        "dave",
        (
            "-w",
            "p100-[1-2]",
        ),
    ),
    ("avoids nodes", "dave", ("-x", "p100-[1-2],m40-1")),
    ("in a reservation", "alice", ("--reservation=exam",)),
    ("second of a capped account", "bob", ("--account=capped",)),
    ("third of a capped account", "bob", ("--account=capped",)),
    ("hostile name", "dave", (f"--job-name={HOSTILE_NAME}", f"--comment={HOSTILE_NAME}")),
    ("name of 1000 bytes", "dave", ("--job-name=" + "x" * 1000,)),
    ("contiguous", "dave", ("-N", "2", "--contiguous", "--spread-job")),
    ("deadline", "dave", ("-t", "10", "--deadline=now+3hours")),
    ("opted out", "bob", ("--gres=gpu:1", "--wckey=x")),
)

# On the profile "mixed", each on the node that it is about.
RUNNING_MIXED: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("untyped with cores", "alice", ("-w", "core1", "--gres=gpu:2")),
    ("untyped without cores", "alice", ("-w", "plain1", "--gres=gpu:1")),
    ("untyped, typed in gres.conf", "alice", ("-w", "auto1", "--gres=gpu:1")),
    ("slice", "bob", ("-w", "mig1", "--gres=gpu:1g.10gb:1")),
    ("slice with an engine", "bob", ("-w", "mig1", "--gres=gpu:1g.10gb+me:1")),
    ("shards", "carol", ("-w", "shard1", "--gres=shard:3")),
    ("several resources", "dave", ("-w", "multi1", "--gres=gpu:a100:1,nic:1,lustre:2G")),
    ("one thread", "dave", ("-w", "smt1", "-n", "1", "--gres=gpu:1")),
    ("a core for each task", "dave", ("-w", "smt1", "-n", "3", "--ntasks-per-core=1")),
)
WAKING: Final = ("on a node that comes up", "alice", ("-p", "cloud", "-w", "cloud2", "--gres=gpu:1"))
PENDING_MIXED: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("waits for untyped", "bob", ("-p", "untyped", "--gres=gpu:2")),
    ("waits for untyped, all at once", "bob", ("-p", "untyped", "--gpus=3", "-N", "2")),
    ("untyped array", "carol", ("-p", "untyped", "--gres=gpu:2", "--array=1-4")),
    ("waits for slices", "carol", ("--gres=gpu:1g.10gb:2",)),
    ("waits for a slice with an engine", "carol", ("--gres=gpu:1g.10gb+me:1",)),
    ("waits for two kinds of slice", "carol", ("--gres=gpu:1g.10gb:1,gpu:1g.10gb+me:1",)),
    ("waits for a type with a hyphen", "carol", ("--gres=gpu:1g.10gb+me:1,gpu:nvidia_a100-sxm4_3g.20gb:1",)),
    ("waits for any three of a node", "dave", ("--gres=gpu:3",)),
    ("waits for GPUs that are shared", "dave", ("-w", "shard1", "--gres=gpu:2")),
    ("waits for shards", "dave", ("--gres=shard:6",)),
    ("waits for several resources", "alice", ("--gres=gpu:a100:2,nic:2,lustre:4G",)),
    ("waits for threads", "alice", ("-w", "smt1", "-c", "16", "--gres=gpu:1")),
    ("waits for cores", "alice", ("-w", "smt1", "--hint=nomultithread", "-n", "8")),
    ("waits for a node that comes up", "bob", ("-p", "cloud", "-w", "cloud2", "--gres=gpu:2")),
    ("waits for nodes of one switch", "bob", ("-N", "3", "--gres=gpu:2", "--switches=1@12:00:00")),
)
POWER_OFF: Final = "/run/no-power"
"""While this file is there, no node of the profile "mixed" comes up (image/entrypoint.sh)."""


class Recorder:
    """Records one release."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = RECORDED / cluster.release
        self.jobs: dict[str, dict[str, Any]] = {}
        self.failures: list[dict[str, Any]] = []

    # --- the queue ---

    def submit(self, label: str, user: str, arguments: tuple[str, ...]) -> int:
        """Submits a job; one that this release refuses is a recorded failure instead."""
        words = ["sbatch", "--parsable", f"--uid={user}", "-o", "/dev/null", "-D", WORKING_DIRECTORY, *arguments]
        done = self.cluster.run([*words, "--wrap=sleep 36000"], check=False)
        if done.returncode != 0:
            print(f"  {self.cluster.release} refuses {label!r}: {done.stderr.strip()}", file=sys.stderr)
            return 0
        job = int(done.stdout.split(";")[0])
        self.jobs[label] = {"id": job, "user": user, "sbatch": list(arguments)}
        return job

    def fill_queue(self) -> None:
        """Every kind of job that is hard to read, running and pending."""
        cluster = self.cluster
        for label, user, arguments in RUNNING:
            job = self.submit(label, user, arguments)
            cluster.wait_state(job, "RUNNING")
            if label == "running without GPU":
                cluster.run(["scontrol", "suspend", str(job)])
        cluster.run(
            [
                *("scontrol", "create", "reservation", "ReservationName=exam", "StartTime=now+2hours"),
                *("Duration=60", "Users=alice", "Nodes=m40-1", "Flags=ignore_jobs"),
            ]
        )
        for label, user, arguments in PENDING:
            self.submit(label, user, arguments)
        first = self.jobs["plain"]["id"]
        array = self.jobs["array"]["id"]
        self.submit("depends on a job", "dave", (f"--dependency=afterok:{first}",))
        self.submit("depends on an array", "dave", (f"--dependency=afterany:{array}:{first}", "--gres=gpu:1"))
        self.submit("depends task by task", "dave", ("--array=1-20", f"--dependency=aftercorr:{array}"))
        self.submit("depends on any of its name", "dave", ("--dependency=singleton", "--job-name=x,y|z"))
        doomed = self.submit("will be cancelled", "dave", ())
        self.submit("dependency can never be met", "dave", (f"--dependency=afterok:{doomed}",))
        cluster.cancel(doomed)
        self._het_job()
        for label in ("held by an administrator", "explicit priority", "site factor", "negative site factor"):
            self.submit(label, "alice", ("--nice=10",))
        jobs = {label: about["id"] for label, about in self.jobs.items()}
        cluster.run(["scontrol", "hold", str(jobs["held by an administrator"])])
        cluster.update(jobs["explicit priority"], "Priority=4242")
        cluster.update(jobs["site factor"], "SiteFactor=1500")
        cluster.update(jobs["negative site factor"], "SiteFactor=-700")
        cluster.update(jobs["two partitions"], "SiteFactor=33")
        self.submit("set to NO", "alice", ())
        self.submit("set to YES", "alice", ("-p", "share"))
        cluster.update(self.jobs["set to NO"]["id"], "OverSubscribe=NO")
        cluster.update(self.jobs["set to YES"]["id"], "OverSubscribe=YES")
        self.submit("made impossible", "alice", ("-p", "urgent", "--qos=high", "--hold"))
        cluster.update(self.jobs["made impossible"]["id"], "ExcNodeList=k80-[1-2],m40-1,p100-[1-2]")
        cluster.run(["scontrol", "release", str(self.jobs["made impossible"]["id"])])
        cluster.wait_sprio([jobs["site factor"]])
        # Until the scheduler has given every job its reason.
        time.sleep(8)

    def _het_job(self) -> None:
        words = ["sbatch", "--parsable", "--uid=carol", "-o", "/dev/null", "-D", WORKING_DIRECTORY]
        words += ["--gres=gpu:p100:1", "-n", "2", ":", "--gres=gpu:k80:1", "--wrap=sleep 36000"]
        job = int(self.cluster.run(words).stdout.split(";")[0])
        self.jobs["het job"] = {"id": job, "user": "carol", "sbatch": words[7:-1]}

    # --- answers ---

    def keep(self, name: str, text: str) -> None:
        """Writes one recording; bytes that are no UTF-8 survive. Only the kernel of this machine is made anonymous."""
        text = text.replace(platform.release(), "6.12.0")
        path = self.folder / f"{name}.txt"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))

    def registry(self, suffix: str = "", only: Sequence[str] = ()) -> None:
        """Every read of the registry that this release knows (or only some), as production asks it."""
        release = tuple(int(part) for part in self.cluster.release.split("."))
        for command in REGISTRY.values():
            if command.writes or (only and command.name not in only):
                continue
            if command.name.endswith("-exclusive") and release < EXCLUSIVE_SINCE:
                continue
            argv = command.argv(BIN, *WORDS.get(command.name, ()))
            done = self.cluster.run(argv, user="rltuned", env=environment(None), check=False)
            if done.returncode != 0:
                self._failed(f"{command.name}{suffix}", argv, "rltuned", None, done)
            self.keep(command.name + suffix, done.stdout)

    def ask(self, name: str, *argv: str, user: str = "rltuned") -> None:
        """An answer beside the registry's."""
        self.keep(name, self.cluster.run(argv, user=user, env=environment(None), check=False).stdout)

    def _failed(
        self, name: str, argv: list[str], user: str, text: str | None, done: subprocess.CompletedProcess[str]
    ) -> None:
        self.failures.append(
            {
                "name": name,
                "argv": argv,
                "user": user,
                "input": text,
                "returncode": done.returncode,
                "stdout": done.stdout,
                "stderr": done.stderr,
            }
        )

    def failure(self, name: str, *argv: str, user: str = "rltuned", text: str | None = None) -> None:
        """A command that fails, warns or is killed after 20 s; all that a client sees of it."""
        words = ["timeout", "-s", "KILL", "20", *argv]
        done = self.cluster.run(words, user=user, env=environment(None), input=text, check=False)
        self._failed(name, list(argv), user, text, done)

    def update_failures(self) -> None:
        """What scontrol says to changes that cannot be."""
        jobs = {label: about["id"] for label, about in self.jobs.items()}
        plain, held = jobs["plain"], jobs["held by its user"]
        running, array = jobs["running typed"], jobs["array"]
        lines = {
            "unknown job": "JobId=999999 SiteFactor=1",
            "priority of a held job": f"JobId={held} Priority=5",
            "not a priority": f"JobId={plain} Priority=abc",
            "priority too large": f"JobId={plain} Priority=4294967294",
            "nice too large": f"JobId={plain} Nice=2147483646",
            "site factor too large": f"JobId={plain} SiteFactor=2147483646",
            "not an OverSubscribe value": f"JobId={plain} OverSubscribe=OK",
            "OverSubscribe of a running job": f"JobId={running} OverSubscribe=NO",
            "ExcNodeList of a running job": f"JobId={running} ExcNodeList=m40-1",
            "unknown node excluded": f"JobId={plain} ExcNodeList=nowhere",
            "tasks that an array has not": f"JobId={array}_[19-50] SiteFactor=3",
            "unknown keyword": f"JobId={plain} Foo=1",
            "finished job": f"JobId={jobs['will be cancelled']} SiteFactor=1",
        }
        for name, line in lines.items():
            self.failure(f"update: {name}", "scontrol", text=f"update {line}\n")
        mixed = f"update JobId={plain} SiteFactor=9\nupdate JobId=999999 SiteFactor=9\nupdate JobId={held} Priority=9\n"
        mixed += f"update JobId={jobs['typed']} SiteFactor=9\nupdate JobId={plain} Priority=x\n"
        self.failure("update: good and bad lines on standard input", "scontrol", text=mixed)
        self.failure("update: all well", "scontrol", text=f"update JobId={plain} SiteFactor=0\n")
        for user in ("alice", "bob", "visitor"):
            self.failure(
                f"update: denied to {user}", "scontrol", text=f"update JobId={plain} SiteFactor=9\n", user=user
            )
        self.failure("release: unknown job", "scontrol", text="release 999999\n")
        self.failure("release: not held", "scontrol", text=f"release {plain}\n")
        self.failure("squeue: unknown column", "squeue", "-h", "-O", "JobID,NoSuchColumn")
        self.failure("squeue: unknown job", "squeue", "-h", "-j", "999999")
        self.failure("sprio: unknown job", "sprio", "-h", "-j", "999999")
        self.failure(
            "sacctmgr: unknown user", "sacctmgr", "-nP", "show", "user", "user=nobody", "format=user,adminlevel"
        )

    def outage_failures(self) -> None:
        """What a client sees of a Slurm that is down, frozen, cut off, or only just back."""
        cluster = self.cluster
        queue = REGISTRY["jobs"].argv(BIN)
        plain = self.jobs["plain"]["id"]

        def all_commands(state: str) -> None:
            self.failure(f"{state}: ping", "scontrol", "ping")
            self.failure(f"{state}: squeue", *queue)
            self.failure(f"{state}: update", "scontrol", text=f"update JobId={plain} SiteFactor=1\n")
            self.failure(f"{state}: sprio", *REGISTRY["site-factors"].argv(BIN))
            self.failure(f"{state}: show config", "scontrol", "show", "config")
            self.failure(f"{state}: sdiag", "sdiag")

        cluster.slurmctld.freeze()
        all_commands("slurmctld frozen")
        cluster.slurmctld.thaw()
        cluster.slurmctld.wait_ready()
        cluster.block_network()
        all_commands("network cut")
        cluster.unblock_network()
        cluster.slurmctld.stop()
        all_commands("slurmctld stopped")
        cluster.sh("slurmctld")
        self.failure("slurmctld just started: ping", "scontrol", "ping")
        wait_until(cluster.slurmctld.answers, "slurmctld answers", pause=0.02)
        self.registry("-just-after-restart", ("ping", "jobs", "jobs-exclusive", "site-factors", "nodes"))
        cluster.slurmctld.wait_ready()
        cluster.sh("pkill munged; sleep 0.5")
        self.failure("munge stopped: squeue", *queue)
        cluster.sh("runuser -u munge -- munged")
        cluster.sh("pkill -STOP slurmdbd", service="dbd")
        self.failure("slurmdbd frozen: privilege", *REGISTRY["privilege"].argv(BIN, "user=rltuned"))
        cluster.sh("pkill -CONT slurmdbd", service="dbd")

    def node_states(self) -> None:
        """Nodes drained, down, planned, with reasons that a person wrote."""
        cluster = self.cluster
        cluster.drain("k80-1", reason="bad | cable = loose State=IDLE Gres=gpu:9")
        cluster.run(["scontrol", "update", "NodeName=m40-1", "State=DOWN", "Reason=power"])
        cluster.run(["scontrol", "update", "NodeName=p100-2", "State=FAIL", "Reason=x"], check=False)
        cluster.run(["scontrol", "update", "PartitionName=share", "State=DOWN"])
        cluster.run(["scontrol", "update", "PartitionName=k80", "State=DRAIN", "Hidden=YES"])
        self.registry("-troubled", ("jobs", "jobs-exclusive", "nodes", "partitions"))

    def other_configurations(self) -> None:
        """The queue empty, priority/basic, no slurmdbd."""
        cluster = self.cluster
        cluster.reset()
        self.registry("-idle", ("jobs", "status", "excluded", "site-factors", "nodes"))
        with cluster.conf(PRIORITY_BASIC):
            cluster.fill()
            cluster.submit_many([("alice",), ("bob", "--gres=gpu:1")])
            time.sleep(2)
            self.registry("-priority-basic", ("config", "jobs", "site-factors"))
        cluster.reset()
        with cluster.conf(NO_SLURMDBD):
            cluster.fill()
            cluster.submit_many([("alice",), ("bob", "--gres=gpu:p100:1"), ("bob", "--gpus=2")])
            time.sleep(2)
            self.registry("-no-slurmdbd", ("config", "jobs", "nodes", "privilege"))

    def hostile_names(self) -> None:
        """QOS, accounts, partitions and reservations of names that an administrator can, but should not, give.

        Slurm takes nearly anything, the registry's separator included: that job is recorded apart.
        """
        cluster = self.cluster
        cluster.reset()
        for suffix, names in (("-hostile-names", HOSTILE_NAMES), ("-separator-in-name", ("us\x1fx",))):
            for hour, name in enumerate(names, start=1):
                for entity in (["qos", name], ["account", name, "cluster=testbed"]):
                    cluster.run(["sacctmgr", "-i", "add", *entity])
                cluster.run(["sacctmgr", "-i", "add", "user", "alice", f"account={name}", "cluster=testbed"])
                cluster.run(["sacctmgr", "-i", "modify", "user", "alice", "set", f"qos+={name}"])
                cluster.run(["scontrol", "create", f"PartitionName={name}", "Nodes=m40-1"])
                cluster.run(
                    [
                        *("scontrol", "create", "reservation", f"ReservationName={name}", f"StartTime=now+{hour}hours"),
                        *("Duration=1", "Users=alice", "Nodes=m40-1", "Flags=ignore_jobs"),
                    ]
                )
                # slurmdbd tells slurmctld of the new names in its own time.
                wanted = ("alice", f"--account={name}", f"--qos={name}", f"--partition={name}", f"--reservation={name}")
                wait_until(lambda wanted=wanted: self._accepted(wanted), f"a job with {name!r} is accepted")
            self.registry(suffix, ("jobs", "jobs-exclusive", "status", "partitions"))
            cluster.cancel_all()
            for name in names:
                cluster.run(["scontrol", "delete", f"ReservationName={name}"])
                cluster.run(["scontrol", "delete", f"PartitionName={name}"])
                cluster.run(["sacctmgr", "-i", "delete", "user", "alice", f"account={name}"], check=False)
                cluster.run(["sacctmgr", "-i", "delete", "account", name], check=False)
                cluster.run(["sacctmgr", "-i", "delete", "qos", name], check=False)
        cluster.reset()

    def _accepted(self, job: tuple[str, ...]) -> bool:
        try:
            self.cluster.submit_many([job])
        except CommandFailedError:
            return False
        return True

    # --- kinds of node ---

    def node_state(self, node: str) -> str:
        """``IDLE+CLOUD+POWERED_DOWN``."""
        shown = self.cluster.run(["scontrol", "-o", "show", "node", node]).stdout
        return shown.partition(" State=")[2].partition(" ")[0]

    def wait_node(self, node: str, flag: str) -> None:
        """Until the state of a node has a flag."""
        wait_until(lambda: flag in self.node_state(node), f"{node} is {flag}")

    def mixed(self) -> None:
        """The queue and the nodes of the profile "mixed", and its nodes in trouble."""
        cluster, on_nodes = self.cluster, "mixed"
        cluster.cancel_all()
        for label, user, arguments in RUNNING_MIXED:
            cluster.wait_state(self.submit(label, user, arguments), "RUNNING")
        for name, flags, node in (("upkeep", "maint", "maint1"), ("course", "ignore_jobs", "resv1")):
            words = [f"ReservationName={name}", "StartTime=now", "Duration=600", "Users=alice", f"Nodes={node}"]
            cluster.run(["scontrol", "create", "reservation", *words, f"Flags={flags}"])
        cluster.sh(f"touch {POWER_OFF}", service=on_nodes)
        self.wait_node("cloud1", "POWERED_DOWN")
        self.wait_node("cloud2", "POWERED_DOWN")
        self.submit(*WAKING)
        self.wait_node("cloud2", "POWERING_UP")
        for label, user, arguments in PENDING_MIXED:
            self.submit(label, user, arguments)
        for node, flag in (("maint1", "MAINT"), ("resv1", "RESERVED")):
            self.wait_node(node, flag)
        cluster.wait_sprio([self.jobs["waits for untyped"]["id"]])
        # Until the scheduler has given every job its reason.
        time.sleep(8)
        queue = ("jobs", "jobs-exclusive", "status", "status-exclusive", "excluded", "site-factors", "diagnostics")
        self.registry("-mixed", ("version", *queue, "nodes", "partitions", "config", "ping"))
        (self.folder / "jobs-mixed.json").write_text(json.dumps(self.jobs, indent=1, sort_keys=True) + "\n")
        cluster.sh(f"rm {POWER_OFF}", service=on_nodes)
        # Rebooting (it runs a job), failing, not answering, registered with less than is configured, going down.
        cluster.run(["scontrol", "reboot", "nextstate=RESUME", "reason=x", "smt1"])
        cluster.run(["scontrol", "update", "NodeName=cpu1", "State=FAIL", "Reason=fan"])
        cluster.sh("kill -STOP $(cat /run/slurmd-core1.pid)", service=on_nodes)
        less = "sed -i '/^NodeName=plain1 /s/rlgpu.*/rlgpu0/' /etc/slurm/gres.conf"
        cluster.sh(f"{less}; kill $(cat /run/slurmd-plain1.pid); sleep 2; slurmd -N plain1", service=on_nodes)
        self.wait_node("plain1", "INVAL")
        self.wait_node("core1", "NOT_RESPONDING")
        cluster.cancel(self.jobs[WAKING[0]]["id"], self.jobs["waits for a node that comes up"]["id"])
        self.wait_node("cloud2", "POWERING_DOWN")
        self.registry("-mixed-troubled", ("nodes",))

    def record(self) -> None:
        """Everything, from an empty folder (but what `mixed` and other programs have put there)."""
        kept = ("priorities-*.txt", "sacct.txt", "*-mixed*")
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if not any(path.match(pattern) for pattern in kept):
                path.unlink()
        self.cluster.reset()
        self.fill_queue()
        self.registry()
        self.ask("sprio-forms", "sprio", "-h", "-o", "%i|%r|%Y|%S|%A|%F|%J|%P|%Q|%N|%T")
        self.ask("squeue-all-tasks", "squeue", "-h", "-r", "-t", "PD", "-o", "%i|%A|%F|%K|%Q|%y|%t|%r")
        self.ask("show-job", "scontrol", "-o", "show", "job", str(self.jobs["exclusive"]["id"]))
        self.ask("show-job-default", "scontrol", "-o", "show", "job", str(self.jobs["plain"]["id"]))
        self.update_failures()
        (self.folder / "jobs.json").write_text(json.dumps(self.jobs, indent=1, sort_keys=True) + "\n")
        self.outage_failures()
        self.node_states()
        self.other_configurations()
        self.hostile_names()
        (self.folder / "failures.json").write_text(json.dumps(self.failures, indent=1) + "\n")


def main() -> int:
    """Records the releases named, or all."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    options.add_argument("release", nargs="*", help=f"of {', '.join(RELEASES)}; default: all")
    options.add_argument("--project", default="rltuned-record")
    options.add_argument("--profile", choices=("paper", "mixed"), help="of the testbed; default: one after the other")
    chosen = options.parse_args()
    testbed = ROOT / "docker-slurm-testbed" / "testbed"
    for release in chosen.release or RELEASES:
        for profile in [chosen.profile] if chosen.profile else ("paper", "mixed"):
            project = f"{chosen.project}-{release.replace('.', '')}"
            up = ("up", "--project", project, "--slurm", release, "--profile", profile)
            subprocess.run([testbed, *up], check=True)
            began = time.monotonic()
            recorder = Recorder(Cluster(release, project))
            try:
                recorder.mixed() if profile == "mixed" else recorder.record()
            except AssertionError as error:
                print(f"{release}: {error}", file=sys.stderr)
                return 1
            print(f"recorded {release}, {profile}, in {time.monotonic() - began:.0f} s", file=sys.stderr)
            subprocess.run([testbed, "down", "--project", project], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
