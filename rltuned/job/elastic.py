"""`rltuned elastic`: runs a program in a Slurm job and lets the job change its number of nodes (docs/elastic.md).

Standard library only, Python 3.8 or later, and nothing of rltuned: a compute node needs this one file. The daemon only
publishes an advice. This process acts on it, inside the job and with its owner's rights:

- A file asks the program to save and end. No work is ever cut off.
- To give nodes back, the job updates itself; the program goes on at once on the first of its nodes.
- To get more nodes, the job requeues itself, and Slurm starts it anew within the range that it asked for.

Without a job, a record directory or a fresh record nothing happens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

SAVED = 85
"""Exit code of a program that has saved and wants to go on."""
CHECKPOINT, ENDED, READY = "checkpoint", "saved", "ready"
"""Files in the directory `$RLTUNED_ELASTIC`: the first one is made here, the others by the program."""
REGISTERED = "elastic"
"""Directory in the record directory where jobs register."""
STARTUP, AWAY = 60.0, 180.0
"""Seconds until the program is ready, and of a requeue, where neither has been measured."""
EVERY = 600.0
"""Seconds between two looks at the advice, where nothing else is said."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_AWAITED = (signal.SIGCHLD, *_PASSED_ON)
OPTIONS = (
    ("least", int, 1, "Fewest nodes, as of sbatch --nodes."),
    ("most", int, 0, "Most nodes, as of sbatch --nodes."),
    ("checkpoint-signal", str, "", "Signal that also asks the program to save and end, as USR1."),
    ("every", float, EVERY, "Seconds between two looks at the advice, and least between two changes."),
    ("most-restarts", int, 50, "Changes in the job's life."),
    ("records", str, "", "Directory of the user records. [default: $RLTUNED_USERS__DIRECTORY]"),
)
"""Name, type, default and meaning."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this file alone; returns the exit code."""
    parser = argparse.ArgumentParser(prog="rltuned elastic", description="Run a program on as many nodes as pay.")
    for name, kind, default, meaning in OPTIONS:
        parser.add_argument(f"--{name}", type=kind, default=default, help=meaning)
    parser.add_argument("command", nargs="+", help="The program and its arguments, behind --.")
    options = vars(parser.parse_args(arguments))
    return run(options.pop("command"), options)


def run(command: list[str], options: dict[str, Any]) -> int:
    """Run a program in this job, with options by their names in `OPTIONS`; returns the exit code."""
    records = options["records"] or os.environ.get("RLTUNED_USERS__DIRECTORY", "")
    number, asked = os.environ.get("SLURM_JOB_ID", ""), options["checkpoint_signal"]
    why = ""
    if asked and not hasattr(signal, f"SIG{asked}"):
        why = f"there is no signal {asked}"
    elif not number.isdigit() or int(os.environ.get("SLURM_STEP_ID", "-1")) >= 0:
        why = "this is no batch script"
    elif {"SLURM_ARRAY_JOB_ID", "SLURM_HET_SIZE"} & os.environ.keys():
        why = "arrays and heterogeneous jobs are not resized"
    elif not records:
        why = "no directory of records is named (--records)"
    elif not 1 <= options["least"] < options["most"]:
        why = "there is no range (--least, --most)"
    files = Path(f".rltuned-elastic-{number}").absolute()
    try:
        if not why:
            files.mkdir(mode=0o700, exist_ok=True)
            # The numbers of jobs to come are known: somebody else may have put a directory or a link there.
            status = files.lstat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:  # a link is open to all
                why = f"{files} is not this user's alone"
    except OSError as error:
        why = f"{files}: {error.strerror}"
    try:
        if not why:
            return _Job(int(number), command, options, Path(records), files).run()
        _say(f"{why}; the program runs as it is")
        os.execvp(command[0], command)  # noqa: S606 - it is what the user wants to run
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126


def advice_of(records: Path, job: int, nodes: int) -> tuple[int, float, float]:
    """What the daemon advises for a job of this user on `nodes` nodes: another number of nodes (the same: no advice, or
    an old one), the share of the remaining run time that they save, and the seconds that are left of the time limit.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        record = json.loads((records / str(os.geteuid()) / "jobs.json").read_text())
        age = time.time() - record["time"]
        for each in record["elastic"]:
            if (each["job_id"], each["nodes"]) == (job, nodes) and -300.0 < age < 3.0 * record["interval"] + 60.0:
                return int(each["advised"]), float(each["saves"]), float(each["left"]) - age
    return nodes, 0.0, 0.0


def registration_name(uid: int, job: int) -> str:
    """Of the file by which this user's job registers; another user's is removed by the daemon."""
    return f"{uid}.{job}"


class _Job:
    """The job that this process runs in."""

    def __init__(self, number: int, command: list[str], options: dict[str, Any], records: Path, files: Path) -> None:
        self.number, self.command, self.options, self.records, self.files = number, command, options, records, files
        self.registration = records / REGISTERED / registration_name(os.geteuid(), number)
        self.nodes, self.signalled = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")), False
        self.began = self.earliest = 0.0
        # Restarts, and seconds: until the program was ready, of the last requeue, and the moment of one under way.
        self.notes = {"restarts": 0.0}
        with contextlib.suppress(OSError, ValueError, TypeError):
            self.notes.update(json.loads((files / "notes.json").read_text()))
        self.notes["restarts"] = max(self.notes["restarts"], float(os.environ.get("SLURM_RESTART_COUNT", "0")))
        if "left" in self.notes:
            self.notes["away"] = max(time.time() - self.notes.pop("left"), 0.0)

    def run(self) -> int:
        """Run the program, on other nodes as often as that pays; returns its exit code. OSError: it cannot start."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        os.environ["RLTUNED_ELASTIC"] = str(self.files)
        try:
            while True:
                code = self._run_once()
                saved = code == SAVED or (code == 0 and (self.files / ENDED).exists())
                if not saved or self.signalled:
                    return code
                if self.notes["restarts"] >= self.options["most_restarts"]:
                    return SAVED
                nodes = self._wanted()
                self.notes["restarts"] += 1
                # A requeue gives nodes back, too, where the site lets no running job shrink.
                if nodes != self.nodes and not self._shrink(nodes):
                    self._requeue(nodes)
        finally:
            shutil.rmtree(self.files, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.registration.unlink()

    def _run_once(self) -> int:
        """Run the program to its end; returns its exit code."""
        for name in (CHECKPOINT, ENDED, READY):
            with contextlib.suppress(OSError):
                (self.files / name).unlink()
        self._register()
        child = _popen(self.command)
        self.began, asked = time.time(), False
        look = self.earliest = self._next_look()
        while child.poll() is None:
            got = signal.sigtimedwait(_AWAITED, max(look - time.monotonic(), 0.0))
            if got is None:
                asked, look = self._look(child, asked), self._next_look()
            elif got.si_signo != signal.SIGCHLD:
                self.signalled = True
                child.send_signal(got.si_signo)
        self._measure()
        return child.returncode if child.returncode >= 0 else 128 - child.returncode

    def _next_look(self) -> float:
        return time.monotonic() + float(self.options["every"])

    def _look(self, child: subprocess.Popen[bytes], asked: bool) -> bool:
        """Ask the program to save and end, or to go on after all. Returns whether it is asked."""
        self._measure()
        self._register()
        nodes, ask = self._wanted(), self.files / CHECKPOINT
        with contextlib.suppress(OSError):
            if nodes == self.nodes:
                ask.unlink()
            elif not asked:
                _say(f"{nodes} instead of {self.nodes} nodes are advised; the program is asked to save")
                ask.touch()
                if self.options["checkpoint_signal"]:
                    child.send_signal(getattr(signal, f"SIG{self.options['checkpoint_signal']}"))
        return nodes != self.nodes

    def _wanted(self) -> int:
        """Nodes that the job should have: those that it has, unless another number is advised and pays."""
        advised, saves, left = advice_of(self.records, self.number, self.nodes)
        nodes = min(max(advised, self.options["least"]), self.options["most"])
        none_left = self.notes["restarts"] >= self.options["most_restarts"]
        if none_left or self.signalled or time.monotonic() < self.earliest:
            return self.nodes
        # To give nodes back is worth a restart, unless the job ends as soon.
        pays = left * saves > self._cost if nodes > self.nodes else left > self.notes.get("startup", STARTUP)
        return nodes if pays else self.nodes

    @property
    def _cost(self) -> float:
        """Seconds that getting more nodes takes: in Slurm, and until the program is where it was."""
        return self.notes.get("away", AWAY) + self.notes.get("startup", STARTUP)

    def _measure(self) -> None:
        with contextlib.suppress(OSError):
            self.notes["startup"] = max((self.files / READY).stat().st_mtime - self.began, 0.0)

    def _register(self) -> None:
        """Tell the daemon what the job could do. Where it cannot be told, no advice will come."""
        said = {"least": self.options["least"], "most": self.options["most"], "cost": round(self._cost, 1)}
        new = self.registration.with_name(f".{self.registration.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            with new.open("x") as file:  # anybody may have put a link there, to a file of this user's
                file.write(json.dumps({"version": 1, **said}))
            new.chmod(0o644)
            new.replace(self.registration)

    def _shrink(self, nodes: int) -> bool:
        """Keep so many nodes only, the first. Whether the rest is given back."""
        # scontrol leaves the environment of the smaller job in its working directory (scontrol(1), NumNodes).
        change = ("update", f"JobId={self.number}", f"NumNodes={nodes}")
        left = self.files / f"slurm_job_{self.number}_resize.sh"
        with contextlib.suppress(OSError):
            left.unlink()
        if nodes > self.nodes or not _scontrol(*change, cwd=self.files):
            return False
        try:
            lines = [words for line in left.read_text().splitlines() for words in [shlex.split(line)] if words]
        except (OSError, ValueError):
            return False
        for word, *values in lines:
            name, _, value = " ".join(values).partition("=")
            if word == "export" and name.startswith("SLURM_"):
                os.environ[name] = value
            elif word == "unset" and name.startswith("SLURM_"):
                os.environ.pop(name, None)
        _say(f"{self.nodes - nodes} of {self.nodes} nodes are given back")
        self.nodes = nodes
        return True

    def _requeue(self, nodes: int) -> None:
        """Have Slurm start the job anew: it ends this process. Returns where it does not."""
        with contextlib.suppress(OSError):
            (self.files / "notes.json").write_text(json.dumps({**self.notes, "left": time.time()}))
        if _scontrol("requeue", str(self.number)):
            _say(f"the job is requeued for {nodes} nodes")
            signal.sigtimedwait(_PASSED_ON, 600.0)
            os._exit(SAVED)
        _say("Slurm does not requeue this job (sbatch --requeue); it goes on as it is")
        self.notes["restarts"] = self.options["most_restarts"]


def _popen(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)

    return subprocess.Popen(command, preexec_fn=unblock, **how)  # noqa: PLW1509 - there is one thread


def _scontrol(*words: str, cwd: Path | None = None) -> bool:
    """Whether Slurm does it."""
    try:
        return _popen(("scontrol", *words), cwd=cwd, stdin=subprocess.DEVNULL).wait(60.0) == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _say(sentence: str) -> None:
    sys.stderr.write(f"rltuned elastic: {sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
