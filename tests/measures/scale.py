"""Whole cycles of an active daemon beside a very long queue, and how their time grows with it.

    PYTHONPATH=.:tests python tests/measures/scale.py [--jobs 100000] [--nodes 5000] [--cycles 10]

Everything of a cycle runs as it does beside a real Slurm: processes and pipes, parsing, tables, reconciliation with a
journal of thousands of entries, the plan, the readings around each write, the journal's fsync, the decision record, the
log. Only Slurm's programs are stand-ins that print prepared text (`printing_slurm`). The daemon runs in a process of
its own, so that its memory is its own.

Not counted are the seconds that the stand-in of ``scontrol`` takes for its updates, and those for which the daemon
sleeps below Slurm's RPC limiter: the sleep is skipped, and the clock set forward. Nor are the forecasts, which have a
process of their own.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from measures.printing_slurm import PrintingSlurm, let_a_minute_pass

from rltuned.controller.cycle.lending import FILE_NAME
from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.planning import planned
from rltuned.controller.cycle.policy import load_policy
from rltuned.controller.health.clock import SystemClock
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.learnt.history import Known
from rltuned.controller.tell.metrics import PHASES, Metrics
from rltuned.controller.tell.states import CycleOutcome
from rltuned.controller.write.journal import Journal
from rltuned.core.config import Config, CycleSection, SlurmSection, Stage, StateSection
from rltuned.core.ended import EndedJob
from rltuned.decide.loans import Book, Offer
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.scope import Veto
from rltuned.lab.benchmarks import NOW
from rltuned.records.decisions import RECORD
from rltuned.slurm.cli import CliReader
from rltuned.slurm.port import ClusterFacts, Privilege
from rltuned.slurm.process import Answer, Runner
from rltuned.slurm.writer import ScontrolWriter

FEW: Final = 10
"""Jobs of the queue whose commands are compared with those of the long one."""
SHARES: Final = (0.1, 0.3, 1.0)
"""Sizes at which the time is taken, as shares of the one that is asked for, jobs and nodes alike."""
UNCOUNTED: Final = frozenset({"version", "config", "privilege"})
"""Commands that do not ask slurmctld, or not in every cycle."""
CPU: Final = "cpu"
"""Beside the phases: what a cycle takes of a processor, which other work on the machine changes little."""
ENDED: Final = 20_000
"""Finished jobs that run times are predicted from."""
ROOM: Final = 120.0
"""Seconds that a command may take: the machine may be busy with making the next answers."""


# --- the daemon's process ----------------------------------------------------------------------------------------


class _Counting(Runner):
    """Counts commands, and the seconds of those that change something."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, timeout=ROOM)
        self.counts: Counter[str] = Counter()
        self.updating = 0.0

    def run(self, name: str, *words: str, stdin: str = "") -> Answer:
        answer = super().run(name, *words, stdin=stdin)
        self.counts[name] += 1
        self.updating += answer.seconds if name == "update" else 0.0
        return answer


class _Hurried(SystemClock):
    """The real clock from `NOW` on, but who sleeps wakes at once, and later."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0
        self._ahead = NOW - super().time()

    def steady(self) -> float:
        return super().steady() + self.slept

    def time(self) -> float:
        return super().time() + self._ahead + self.slept

    def monotonic(self) -> float:
        return super().monotonic() + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


class _OperatorReader(CliReader):
    """The caller is SlurmUser here, or root, whom the limiter does not count; let it be an operator, who is counted."""

    def facts(self, known: ClusterFacts | None = None) -> ClusterFacts:
        return replace(super().facts(known), privilege=Privilege.OPERATOR)


class Heard:
    """A log that keeps what `cycle.done` says, at whatever level: what was said lately is told at debug."""

    def __init__(self) -> None:
        self.done: Mapping[str, Any] = {}

    def info(self, event: str, **values: Any) -> None:
        """See `Log`."""
        if event == "cycle.done":
            self.done = values

    debug = warning = error = exception = info


def measured(directory: Path, cycles: int) -> dict[str, Any]:
    """Run so many cycles, after one that does not count, beside the programs in `directory`.

    Returns:
        ``ms``: milliseconds of each cycle by phase; ``commands``: most of a cycle; MiB of memory, most and at the end;
        and what the last cycle was like.

    Raises:
        RuntimeError: a cycle failed.
    """
    runner, clock, heard = _Counting(directory), _Hurried(), Heard()
    config = Config(
        slurm=SlurmSection(bin_dir=directory),
        cycle=CycleSection(stage=Stage.ACTIVE),
        state=StateSection(directory=directory / "state", mirror=directory / "mirror"),
    )
    known = Known()
    known.learn([EndedJob(*job) for job in json.loads((directory / "ended").read_bytes())], clock.time())
    metrics = Metrics([veto.value for veto in Veto], [outcome.value for outcome in SolveOutcome])
    parts = Parts(
        runtime=Runtime(config, clock, heard, metrics),
        policy=load_policy(config),
        reader=_OperatorReader(runner),
        writer=lambda: ScontrolWriter(runner),
        journal=Journal.open(config.state.directory, config.state.mirror),
        planner=partial(planned, known.predicted),
        rng=random.Random(0),
    )
    daemon = Daemon(parts)
    taken: dict[str, list[float]] = {phase: [] for phase in (*PHASES, CPU)}
    commands: Counter[str] = Counter()
    applied = 0
    for cycle in range(cycles + 1):
        clock.sleep(config.cycle.interval)
        let_a_minute_pass(directory)
        slept, updating, began, worked = clock.slept, runner.updating, clock.monotonic(), time.process_time()
        runner.counts.clear()
        report = daemon.tick()
        seconds = {**heard.done["seconds"], "total": clock.monotonic() - began, CPU: time.process_time() - worked}
        if report is None or report.record is None or report.outcome is not CycleOutcome.DONE:
            raise RuntimeError(f"the cycle failed: {report and report.sentence}")
        commands |= runner.counts
        applied += heard.done["changes"].get("applied", 0)
        for phase, value in seconds.items() if cycle else ():
            others = clock.slept - slept + runner.updating - updating if phase in {"apply", "total"} else 0.0
            taken[phase].append(1000.0 * (value - others))
        last = {"managed": len(report.record.jobs), "planned": len(report.record.changes)}
        del report  # the daemon keeps no record over a cycle
    daemon.stop()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return {
        "ms": taken,
        "commands": sum(count for name, count in commands.items() if name not in UNCOUNTED),
        "rss_mb": int(status["VmHWM"].split()[0]) / 1024,
        "rss_after_mb": int(status["VmRSS"].split()[0]) / 1024,
        **last,
        "applied": applied,
        "journal_entries": len(daemon.journal.entries),
        "record_mb": (config.state.directory / RECORD).stat().st_size / 2**20,
    }


# --- the bench's process -----------------------------------------------------------------------------------------


def of_size(jobs: int, nodes: int, seed: int, cycles: int, *, limited: bool = False) -> dict[str, Any]:
    """`measured` in a process of its own, beside a Slurm of that size and with the journal of an earlier daemon."""
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from measures.scale import measured\n"
        "print(json.dumps(measured(Path(sys.argv[1]), int(sys.argv[2]))))\n"
    )
    with tempfile.TemporaryDirectory(prefix="rltuned-bench-") as name:
        directory = Path(name)
        slurm = PrintingSlurm(directory, jobs, nodes, seed, limited=limited)
        (directory / "state").mkdir()
        journal = Journal.open(directory / "state", directory / "mirror")
        journal.update(slurm.left_behind())
        offers = {entry.job_id: Offer(entry.submit_time, 1, 1, 1.0, 60.0, ()) for entry in slurm.left_behind()}
        (directory / "state" / FILE_NAME).write_text(json.dumps({"book": Book(offers=offers).as_dict()}))
        journal.close()
        (directory / "ended").write_text(json.dumps(_ended(slurm, seed)), encoding="ascii")
        with slurm.answering():
            argv = [sys.executable, "-c", code, name, str(cycles)]
            done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return {"jobs": jobs, "nodes": nodes, **result}


def _ended(slurm: PrintingSlurm, seed: int) -> list[EndedJob]:
    """Jobs of the same users that have ended."""
    rng = np.random.default_rng(seed)
    users = rng.choice(slurm.users, ENDED).tolist()
    gpus = rng.choice([0, 1, 2, 4, 8], ENDED).tolist()
    hours = rng.integers(1, 24, ENDED).tolist()
    share = rng.random(ENDED).tolist()
    return [
        EndedJob(at, user, "acct1", "gpu" if g else "cpu", g, 3600.0 * h, 3600.0 * h * part, NOW - 2.0 * (ENDED - at))
        for at, (user, g, h, part) in enumerate(zip(users, gpus, hours, share, strict=True), start=1)
    ]


def growth(sizes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By phase the exponent e of time ∝ size^e between the last two sizes: 1 is linear, 2 quadratic. The fastest cycles
    count.
    """
    before, after = sizes[-2:]
    steps = math.log(after["jobs"] / before["jobs"])
    return {
        phase: round(math.log(min(after["ms"][phase]) / min(before["ms"][phase])) / steps, 2)
        for phase in after["ms"]
        if min(before["ms"][phase]) > 0.0  # a phase that does nothing here
    }


def main() -> None:
    """Prints the figures of three sizes as they come, then the growth, then a cycle below Slurm's limiter."""
    parser = argparse.ArgumentParser(description="Whole cycles of a daemon beside a very long queue.")
    parser.add_argument("--jobs", type=int, default=100_000, help="pending")
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--cycles", type=int, default=10, help="of each size")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sizes = []
    for share in SHARES:
        size = max(FEW, round(asked.jobs * share)), max(FEW, round(asked.nodes * share))
        sizes.append(of_size(*size, asked.seed, asked.cycles))
        _say(sizes[-1])
    few = of_size(FEW, asked.nodes, asked.seed, 2)
    _say({"growth": growth(sizes), "commands_10_jobs": few["commands"]})
    _say(of_size(asked.jobs, asked.nodes, asked.seed, max(asked.cycles // 3, 2), limited=True))


def _say(value: Mapping[str, Any]) -> None:
    spread = {
        phase: [round(float(np.percentile(of, p)), 2) for p in (50, 99)] for phase, of in value.get("ms", {}).items()
    }
    sys.stdout.write(json.dumps({**value, "ms": spread} if spread else value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
