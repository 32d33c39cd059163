"""``rltuned demo``: the real daemon on the simulated cluster, beside the same cluster without it.

What runs is `controller.cycle.loop.Daemon` with its journal, its metrics endpoint and its decision record, on the
simulation's clock; a twin of the cluster with the same jobs, the same people and no daemon runs along. Towards the end
the daemon is stopped, ``rltuned restore`` runs as the command does, and every pending job is compared with what people
alone have made of it; then the daemon goes on with the rest.
"""

import json
import math
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import prometheus_client

from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.planning import planned
from rltuned.controller.cycle.policy import load_policy
from rltuned.controller.give_back.by_command import restore_queue
from rltuned.controller.health.clock import Clock
from rltuned.controller.health.lock import Lock
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.learnt.history import LearntRunTimes
from rltuned.controller.tell.endpoint import serve
from rltuned.controller.tell.logs import make
from rltuned.controller.tell.metrics import Metrics
from rltuned.controller.write.apply import Result
from rltuned.controller.write.journal import Journal
from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Outcome
from rltuned.core.config import Config, resolve, toml_value
from rltuned.core.ended import EndedJob
from rltuned.core.tables import Floats, Snapshot
from rltuned.core.wording import duration
from rltuned.decide.decision import record
from rltuned.decide.loans import Book
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.plan import Plan
from rltuned.decide.rank import Policy
from rltuned.decide.scope import Veto
from rltuned.lab.demo.people import draw_interventions
from rltuned.lab.demo.simulated_slurm import Profile, SimulatedSlurm, as_accounted
from rltuned.lab.evaluate.window_metrics import measure
from rltuned.lab.report import charts, page, period, replay
from rltuned.lab.report.build import assemble
from rltuned.records import decisions
from rltuned.records.decisions import save
from rltuned.simulate.shape import ClusterShape, from_json, read_shape
from rltuned.simulate.values import JobFate
from rltuned.simulate.workload.jobs import Estimates, Workload
from rltuned.simulate.workload.simulated_estimates import EstimateKind, estimate
from rltuned.simulate.workload.synthetic import generate

CLUSTER: Final[Mapping[str, Any]] = {
    "pools": [
        {"name": "big", "nodes": 24, "gpus_per_node": 8, "gpu_type": "a100", "cpus": 64, "mem_gib": 512},
        {"name": "middle", "nodes": 32, "gpus_per_node": 4, "gpu_type": "v100", "cpus": 40, "mem_gib": 256},
        {"name": "small", "nodes": 24, "gpus_per_node": 2, "gpu_type": "t4", "cpus": 24, "mem_gib": 128},
    ],
    "partitions": [
        {"name": "train", "pools": ["big", "middle"], "default": True, "max_time": "6:00:00"},
        {"name": "lab", "pools": ["small"], "max_time": "6:00:00"},
    ],
}
"""80 nodes, 368 GPUs of three types, two partitions. MaxTime keeps the virtual days few."""

CONFIG: Final = """[cycle]
stage = "active"
interval = {interval}

[policy]
name = {name}

[metrics]
listen = "127.0.0.1:0"

[state]
directory = {directory}
mirror = ""
"""

INTERVAL: Final = 240.0
"""Virtual seconds between two cycles: four times the default, so that a day passes in a quarter of a minute."""
WELL_ON: Final = 0.75
"""Share of the jobs that have come before the undo is shown."""
RAISED: Final = 4
"""Jobs that carry a raise, which make it worth seeing."""
EPOCH: Final = 1_800_000_000
MAX_ID: Final = 2**31
"""Ids of the jobs of the past count down from here: nobody else's."""
PATIENCE: Final = 14 * 86_400.0
"""Virtual seconds after the last submission at which the demonstration stops waiting for the last start."""


@dataclass(frozen=True)
class DemoSettings:
    """What is demonstrated."""

    preset: str = "helios"
    jobs: int = 1500
    seed: int = 7
    load: float = 1.4
    """Demand over capacity while jobs come: above 1 the queue grows."""
    cluster: str = ""
    """As `--cluster` of ``rltuned evaluate``; "": the built-in one."""
    policy: str = "model"
    past: int = 3000
    """Jobs before the first, which the accounting remembers."""


def split(both: Workload, past: int, shape: ClusterShape) -> tuple[Workload, list[EndedJob]]:
    """The jobs of the demonstration, from time 0 on, and what came before them as the accounting remembers it."""
    before, jobs = both.take(slice(0, past)), both.take(slice(past, None))
    zero = float(jobs.submit_time[0])
    names = [before.partition.value(row) or shape.default.name for row in range(past)]
    end = EPOCH + np.minimum(before.submit_time - zero + before.run_time, -1.0)
    ended = as_accounted(before, MAX_ID - np.arange(past), names, before.time_limit, before.run_time, end)
    # The simulated Slurm numbers the jobs from 1 on.
    return replace(jobs, job_id=np.arange(1, len(jobs) + 1), submit_time=jobs.submit_time - zero), ended


class Demo:
    """One demonstration. Use as a context: what it opens is closed, however it ends."""

    def __init__(self, settings: DemoSettings, directory: Path) -> None:
        """`directory`: state of the daemon, which puts its intents there before each write."""
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # this one has no annotations
        self.settings, self.directory = settings, directory
        self.shape = read_shape(settings.cluster) if settings.cluster else from_json(CLUSTER, "built-in")
        both = generate(settings.preset, settings.past + settings.jobs, self.shape, settings.seed, settings.load)
        self.jobs, past = split(both, settings.past, self.shape)
        known = self._estimates()
        interventions, profile = draw_interventions(self.jobs, settings.seed), Profile(epoch=EPOCH)
        self.steered = SimulatedSlurm(
            self.shape, self.jobs, known, interventions=interventions, profile=profile, past=past
        )
        self.plain = SimulatedSlurm(self.shape, self.jobs, known, interventions=interventions, profile=profile)
        self.config = resolve(self._config(directory), "demo", {}, {}).config
        self.policy = load_policy(self.config)
        self._plan: Plan | None = None
        self._busiest: tuple[Plan, tuple[Result, ...]] | None = None
        """The decision that raised a job furthest, and what came of it."""
        self.proof: dict[str, float] | None = None
        self.cycles = self.raised = 0
        self.outcomes: Counter[Outcome] = Counter()
        with ExitStack() as stack:  # closes what was opened if anything below fails
            self.log_file = directory / "rltuned.log"
            logger = make("info", "text", stack.enter_context(self.log_file.open("w", encoding="utf-8")))
            self.metrics = Metrics([veto.value for veto in Veto], [outcome.value for outcome in SolveOutcome])
            if (endpoint := serve(self.metrics, self.config.metrics)) is not None:
                stack.callback(endpoint.close)
                self.url = f"http://{endpoint.host}:{endpoint.port}/metrics"
            self._runtime = Runtime(self.config, self.steered.clock, logger, self.metrics)
            self._run_times = LearntRunTimes(self.steered, self._runtime)
            self._run_times.refresh()
            self._start_daemon()
            stack.callback(self._stop_daemon)
            self._closing = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _estimates(self) -> Estimates:
        """Limits and r. No limit is above MaxTime: Slurm would refuse the job."""
        known = estimate(self.jobs, EstimateKind.HISTORY, self.settings.seed)
        longest = {partition.name: partition.max_time for partition in self.shape.partitions}
        longest[""] = self.shape.default.max_time
        limit = np.minimum(known.time_limit, [longest[self.jobs.partition.value(row)] for row in range(len(self.jobs))])
        return Estimates(limit, np.minimum(known.run_time, limit))

    def _config(self, directory: Path) -> str:
        """The daemon's configuration with its state in `directory`, as TOML."""
        return CONFIG.format(
            interval=INTERVAL,
            name=toml_value(self.settings.policy),
            directory=toml_value(str(directory)),
        )

    # --- the daemon

    def _start_daemon(self) -> None:
        self._lock = Lock.acquire(self.directory, "run", self.steered.clock.time())
        parts = Parts(
            runtime=self._runtime,
            policy=self.policy,
            reader=self.steered,
            writer=lambda: self.steered,
            journal=Journal.open(self.directory, None),
            planner=self._planner,
            told=self._run_times.told,
            rng=random.Random(self.settings.seed),  # noqa: S311 - jitter of a back-off
        )
        self.daemon = Daemon(parts)

    def _stop_daemon(self) -> None:
        self.daemon.stop()
        self._lock.release()

    def _planner(self, snapshot: Snapshot, policy: Policy, config: Config, applied: AppliedChanges, book: Book) -> Plan:
        self._plan = planned(self._run_times.predicted, snapshot, policy, config, applied, book)
        return self._plan

    # --- moving

    @property
    def over(self) -> bool:
        """Whether all that will ever start has started, in both clusters."""
        now, last = self.steered.simulation.now, float(self.jobs.submit_time[-1])
        waiting = len(self.steered.simulation.pending) + len(self.plain.simulation.pending)
        return now >= last and (not waiting or now > last + PATIENCE)

    def play(self, say: Callable[[str], None], clock: Clock, stop: Callable[[], bool], speed: float = 0.0) -> bool:
        """Run to the end, with a line for each virtual hour. Returns whether `stop`, which is asked after each cycle,
        cut it short. `speed`: virtual seconds per real second at most; 0: as fast as it goes.
        """
        began = clock.monotonic()
        while not self.over:
            self.step()
            if speed > 0.0 and (ahead := self.cycles * INTERVAL / speed - (clock.monotonic() - began)) > 0.0:
                clock.sleep(ahead)
            if self.steered.simulation.now % 3600.0 < INTERVAL or self.over:
                say(self.line())
            if stop():
                return True
        return False

    def step(self) -> None:
        """To the next full interval, in both clusters, and one cycle of the daemon."""
        until = (math.floor(self.steered.simulation.now / INTERVAL) + 1.0) * INTERVAL
        self.steered.advance(until)
        self.plain.advance(until)
        if until % self.config.estimates.refresh == 0:
            self._run_times.refresh()  # in the service a thread of its own does this
        report = self.daemon.tick()
        if report is None:  # pragma: no cover - one thread, one cycle at a time
            raise RuntimeError("a cycle is running already")
        self.cycles += 1
        self.raised += 0 if report.record is None else len(report.record.raises)
        self.outcomes.update(result.outcome for result in report.results)
        if self._plan is not None and (self._busiest is None or _furthest(self._plan) > _furthest(self._busiest[0])):
            self._busiest = self._plan, report.results
        if self.proof is None and self._is_worth_proving():
            self.prove()

    def _is_worth_proving(self) -> bool:
        """Late, and while some jobs are raised if there is such a moment before the last submission."""
        now, submit = self.steered.simulation.now, self.jobs.submit_time
        if now >= submit[-1]:
            return True
        late = int((submit <= now).sum()) >= WELL_ON * len(submit)
        return late and len({left.job_id for left in self.steered.leftovers()}) >= RAISED

    def prove(self) -> dict[str, float]:
        """Stop the daemon, run ``rltuned restore``, and compare every pending job with what people alone made of it;
        then the daemon starts again. Returns what restore left.
        """
        self._stop_daemon()
        slurm = self.steered
        changed = {left.job_id for left in slurm.leftovers()}
        report = restore_queue(
            self.config,
            clock=slurm.clock,
            connect_reader=lambda _: slurm,
            connect_writer=lambda _: slurm,
        )
        if report is None:  # pragma: no cover - only with if_stale
            raise RuntimeError("nothing was restored")
        others = set(report.foreign)
        self.proof = {
            "time": slurm.simulation.now,
            "pending": len(slurm.waiting()),
            "changed": len(changed),
            "restored": len(report.restored),
            # Not as people alone left them. 0, or it is a defect.
            "left": len({left.job_id for left in slurm.leftovers()} - others),
            "others": len(others),
        }
        self._start_daemon()
        return self.proof

    # --- what came of it

    def line(self) -> str:
        """How things stand."""
        now, submit = self.steered.simulation.now, self.jobs.submit_time
        queue, wait = [], []
        for simulation in (self.steered.simulation, self.plain.simulation):
            fate = simulation.fate
            counts = (submit <= now) & (fate != JobFate.CANCELLED) & (fate != JobFate.REJECTED)
            start = np.where(np.isnan(simulation.start), now, simulation.start)
            queue.append(int((counts & (fate == JobFate.WAITING)).sum()))
            wait.append(duration(float((start - submit)[counts].mean()) if counts.any() else None))
        return (
            f"{(now - submit[0]) / 3600:6.1f} h  {int((submit <= now).sum()):>5}/{len(submit)} jobs"
            f"  queue {queue[0]:>4} (Slurm alone {queue[1]:>4})  mean wait {wait[0]} (Slurm alone {wait[1]})"
            f"  {self.outcomes[Outcome.APPLIED]} changes"
        )

    def summary(self, *, interrupted: bool = False) -> dict[str, Any]:
        """Everything, as JSON-able data, of the jobs that started in both clusters. Ends the demonstration: the running
        jobs run to their end without the daemon.
        """
        now = self.steered.simulation.now
        proof = self.proof or self.prove()
        if self._busiest is not None:
            made, results = self._busiest
            save(self.directory, record(made, results=results))
        ends = [self._times(slurm) for slurm in (self.plain, self.steered)]
        compared = np.logical_and(*(~np.isnan(start) for start, _ in ends))
        gpus, user, capacity = self.jobs.gpus.astype(np.float64), self.jobs.user, float(self.shape.gpus)
        plain, steered = (
            measure(self.jobs.submit_time, start, end, gpus, compared, user, capacity)._asdict() for start, end in ends
        )
        fate = self.steered.simulation.fate
        return {
            "settings": asdict(self.settings),
            "interrupted": interrupted,
            "policy": {"name": self.policy.name},
            "cluster": {
                "nodes": len(self.shape.nodes),
                "gpus": self.shape.gpus,
                "gpu_types": list(self.shape.nodes.gpu_types),
                "partitions": [partition.name for partition in self.shape.partitions],
            },
            "virtual_seconds": now - float(self.jobs.submit_time[0]),
            "cycles": self.cycles,
            "raised_per_cycle": self.raised / max(self.cycles, 1),
            "changes": {outcome.value: self.outcomes[outcome] for outcome in Outcome},
            "jobs": {
                "all": len(self.jobs),
                "submitted": int((self.jobs.submit_time <= self.steered.simulation.now).sum()),
                "compared": int(compared.sum()),
                "cancelled": int((fate == JobFate.CANCELLED).sum()),
                "rejected": int((fate == JobFate.REJECTED).sum()),
            },
            "multifactor": plain,
            "rltuned": steered,
            "relative": {
                name: (steered[name] / plain[name] - 1.0 if plain[name] else None)
                for name in plain
                if math.isfinite(plain[name]) and math.isfinite(steered[name])
            },
            "restore": proof,
            "example_job": self._example(),
        }

    def _times(self, slurm: SimulatedSlurm) -> tuple[Floats, Floats]:
        """Start and end of each job that has started; one that runs will end when its work or its limit does."""
        result = slurm.simulation.result()
        rest = np.minimum(self.jobs.run_time, slurm.simulation.estimates.time_limit)
        return result.start, np.where(np.isnan(result.end), result.start + rest, result.end)

    def _example(self) -> int | None:
        """A job worth explaining: the one that was raised furthest, of all cycles."""
        if self._busiest is None or not len(self._busiest[0].rows):
            return None
        made = self._busiest[0]
        return int(made.snapshot.jobs.job_id[made.rows[np.argmax(made.base_rank - made.rank)]])

    def report(self, made_at: float) -> dict[str, Any]:
        """The report of a demonstration that is over (docs/try.md): both orders have really run. EvaluationError: no
        job has run in both clusters.
        """
        since, until = float(EPOCH), self.steered.clock.time() + 1.0
        (plain_start, plain_end), (start, end) = self._times(self.plain), self._times(self.steered)
        policy = "rltuned"  # not the policy's name: that may be Slurm's own order
        found = replay.of_times(
            self.jobs,
            {replay.REAL: start, policy: start, replay.SLURM: plain_start},
            {replay.REAL: end, policy: end, replay.SLURM: plain_end},
            capacity=float(self.shape.gpus),
            zero=since,
            policy=policy,
            reference=policy,
            in_period=len(self.jobs),
            seed=self.settings.seed,
            exact=True,
        )
        return assemble(
            period.read(decisions.entries(self.directory, since, until), since, until),
            found,
            missing=[],
            made_at=made_at,
            cluster=f"{self.shape.text} (simulated)",
            names=True,
        )

    def keep(self, directory: Path, summary: Mapping[str, Any], made_at: float) -> None:
        """Leave configuration, last record, log, summary and report in a directory that stays; OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        for name in (decisions.RECORD, self.log_file.name):
            if (self.directory / name).exists():
                shutil.copyfile(self.directory / name, directory / name)
        (directory / "config.toml").write_text(self._config(directory), encoding="utf-8")
        (directory / "summary.json").write_text(json.dumps(summary, indent=2, default=str) + "\n", encoding="utf-8")
        if summary["jobs"]["compared"]:
            made = self.report(made_at)
            (directory / "report.html").write_text(page.render(made, charts.draw(made)), encoding="utf-8")


def _furthest(made: Plan) -> int:
    """Places that the job is ahead which is raised furthest."""
    return int((made.base_rank - made.rank).max(initial=0))


def demonstrate(
    settings: DemoSettings, kept: Path, clock: Clock, say: Callable[[str], None], speed: float
) -> tuple[dict[str, Any], str]:
    """A whole demonstration, which Ctrl-C cuts short. Gives its summary, and why nothing was left in `kept`, or ""."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there, as in any temporary place
    fast = memory if os.access(memory, os.W_OK) else None
    stopped: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    try:
        with tempfile.TemporaryDirectory(prefix="rltuned-demo-", dir=fast) as work, Demo(settings, Path(work)) as demo:
            say(f"policy {demo.policy.name}   metrics {demo.url}")
            cut = demo.play(say, clock, lambda: bool(stopped), speed)
            summary = demo.summary(interrupted=cut)
            try:
                demo.keep(kept, summary, clock.time())
            except OSError as error:
                return summary, f"{kept}: {error.strerror}"
            return summary, ""
    finally:
        signal.signal(signal.SIGINT, before)
