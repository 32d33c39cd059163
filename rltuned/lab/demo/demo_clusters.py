"""``rltuned demo``: the real daemon on the simulated cluster, beside the same cluster without it.

What runs is `controller.cycle.loop.Daemon` with its journal, its metrics endpoint and its decision record, on the
simulation's clock; a twin of the cluster with the same jobs, the same people and no daemon runs along. Towards the end
the daemon is stopped, ``rltuned restore`` runs as the command does, and every pending job is compared with what people
alone have made of it; then the daemon goes on with the rest.

Nothing is printed here: `Demo.step` does one cycle, `Demo.scene` says how things stand, `Demo.summary` what came of it.
"""

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import prometheus_client

from rltuned.controller.cycle.auto_policy import load_policy
from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.planning import planned
from rltuned.controller.cycle.runtime import Runtime
from rltuned.controller.give_back.by_command import restore_queue
from rltuned.controller.health.clock import Clock
from rltuned.controller.health.lock import Lock
from rltuned.controller.learnt.history import RunTimes
from rltuned.controller.tell.cycle_report import CycleReport
from rltuned.controller.tell.endpoint import Endpoint, serve
from rltuned.controller.tell.logs import make
from rltuned.controller.tell.metrics import Metrics
from rltuned.controller.write.apply import Result
from rltuned.controller.write.journal import Journal
from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Outcome
from rltuned.core.config import DEFAULT_MODEL, Config, Stage, resolve, toml_value
from rltuned.core.ended import EndedJob
from rltuned.core.tables import Bools, Floats, JobTable, Snapshot
from rltuned.decide.decision import record
from rltuned.decide.expect.predictions import RunTimePredictions
from rltuned.decide.loans import NOTHING_TOLD, Book, Told
from rltuned.decide.place.problem import SolveOutcome
from rltuned.decide.plan import Plan
from rltuned.decide.rank import Policy
from rltuned.decide.scope import Veto
from rltuned.lab.demo.people import draw_interventions
from rltuned.lab.demo.simulated_slurm import Profile, SimulatedSlurm
from rltuned.lab.evaluate.window_metrics import measure
from rltuned.records.decisions import RECORD, save
from rltuned.simulate.shape import ClusterShape, from_json
from rltuned.simulate.values import JobFate
from rltuned.simulate.workload.jobs import Estimates, Workload
from rltuned.simulate.workload.shapes import read_shape
from rltuned.simulate.workload.simulated_estimates import EstimateKind, estimate, parse_estimates
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
    model: str = DEFAULT_MODEL
    past: int = 3000
    """Jobs before the first, which the accounting remembers."""
    estimates: str = "history"
    metrics_port: int | None = 0
    """On the loopback; 0: any free one, None: no endpoint."""


class Side(NamedTuple):
    """One of the two clusters, or a partition of it, at a moment."""

    queue: int
    busy: int
    """GPUs."""
    wait: float
    """Mean of the jobs submitted so far, those that still wait included, seconds; NaN before the first."""


class Part(NamedTuple):
    """A partition, or the whole cluster, at a moment."""

    name: str
    gpus: int
    steered: Side
    plain: Side


class Scene(NamedTuple):
    """How things stand."""

    time: float
    """Virtual seconds since the first submission."""
    submitted: int
    jobs: int
    cycles: int
    sentence: str
    """What the daemon said of its last cycle."""
    raised: int
    """Jobs that go ahead of their place in Slurm's order."""
    lent: float
    """GPU-seconds that the jobs that wait have lent."""
    applied: int
    parts: tuple[Part, ...]
    """Partitions, then the whole cluster."""


class _Known:
    """Estimates that are fixed beforehand (`true`, `noisy`, `limit`)."""

    def __init__(self, run_time: Floats) -> None:
        self._run_time = run_time

    def refresh(self) -> None:
        """Nothing is learnt."""

    def predicted(self, jobs: JobTable) -> RunTimePredictions:
        """As `RunTimes.predicted`; how wrong they are is not known."""
        estimate, unknown = self._run_time[jobs.job_id - 1], np.full(len(jobs), np.nan)
        return RunTimePredictions(estimate, estimate, unknown, unknown)

    def told(self) -> Told:
        """As `RunTimes.told`: there is no accounting."""
        return NOTHING_TOLD


def split(both: Workload, past: int, shape: ClusterShape) -> tuple[Workload, list[EndedJob]]:
    """The jobs of the demonstration, from time 0 on, and what came before them as the accounting remembers it."""
    before, jobs = both.take(slice(0, past)), both.take(slice(past, None))
    zero = float(jobs.submit_time[0])
    ended = [
        EndedJob(
            MAX_ID - row,
            before.user.value(row),
            before.account.value(row),
            before.partition.value(row) or shape.default.name,
            int(before.gpus[row]),
            float(before.time_limit[row]),
            float(before.run_time[row]),
            float(EPOCH + min(before.submit_time[row] - zero + before.run_time[row], -1.0)),
            int(before.cpus[row]),
        )
        for row in range(past)
    ]
    # The simulated Slurm numbers the jobs from 1 on.
    return replace(jobs, job_id=np.arange(1, len(jobs) + 1), submit_time=jobs.submit_time - zero), ended


@dataclass
class Demo:
    """One demonstration. Use as a context: what it opens is closed, however it ends."""

    settings: DemoSettings
    directory: Path
    """State of the daemon. Slow to fill where the disk is: each cycle puts its intents there before it writes."""
    jobs: Workload = field(init=False)
    shape: ClusterShape = field(init=False)

    def __enter__(self) -> Self:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # this one has no annotations
        settings = self.settings
        self.shape = read_shape(settings.cluster) if settings.cluster else from_json(CLUSTER, "built-in")
        both = generate(settings.preset, settings.past + settings.jobs, self.shape, settings.seed, settings.load)
        self.jobs, past = split(both, settings.past, self.shape)
        self._last_submission = float(self.jobs.submit_time[-1])
        known = self._estimates()
        interventions, profile = draw_interventions(self.jobs, settings.seed), Profile(epoch=EPOCH)
        self.steered = SimulatedSlurm(
            self.shape, self.jobs, known, interventions=interventions, profile=profile, past=past
        )
        self.plain = SimulatedSlurm(self.shape, self.jobs, known, interventions=interventions, profile=profile)
        self.config = resolve(self._config(self.directory), "demo", {}, {}).config
        self.policy = load_policy(self.config)
        with ExitStack() as stack:  # closes what was opened if anything below fails
            self._open(stack, known)
            self._closing = stack.pop_all()
        return self

    def _open(self, stack: ExitStack, known: Estimates) -> None:
        """Log, metrics endpoint, daemon."""
        self.log_file = self.directory / "rltuned.log"
        self._logger = make("info", "text", stack.enter_context(self.log_file.open("w", encoding="utf-8")))
        self.metrics = Metrics([veto.value for veto in Veto], [outcome.value for outcome in SolveOutcome])
        endpoint: Endpoint | None = serve(self.metrics, self.config.metrics)
        self.url = ""
        if endpoint is not None:
            stack.callback(endpoint.close)
            self.url = f"http://{endpoint.host}:{endpoint.port}/metrics"
        self._plan: Plan | None = None
        self._busiest: tuple[Plan, tuple[Result, ...]] | None = None
        self._report: CycleReport | None = None
        self.proof: dict[str, float] | None = None
        self.cycles = self.raised = 0
        self.outcomes: Counter[Outcome] = Counter()
        self._runtime = Runtime(self.config, self.steered.clock, self._logger, self.metrics)
        self._run_times = self._source(known)
        self._run_times.refresh()
        self._start_daemon()
        stack.callback(self._stop_daemon)

    def _estimates(self) -> Estimates:
        """Limits and r. No limit is above MaxTime: Slurm would refuse the job."""
        known = estimate(self.jobs, self.settings.estimates, self.settings.seed)
        longest = {partition.name: partition.max_time for partition in self.shape.partitions}
        longest[""] = self.shape.default.max_time
        limit = np.minimum(known.time_limit, [longest[self.jobs.partition.value(row)] for row in range(len(self.jobs))])
        return Estimates(limit, np.minimum(known.run_time, limit))

    def _source(self, known: Estimates) -> "RunTimes | _Known":
        """The daemon's own predictions from the accounting, or what was asked for."""
        if parse_estimates(self.settings.estimates).kind is not EstimateKind.HISTORY:
            return _Known(known.run_time)
        return RunTimes(self.steered, self._runtime)

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _config(self, directory: Path) -> str:
        """The daemon's configuration with its state in `directory`, as TOML."""
        settings = self.settings
        chosen: dict[str, dict[str, Any]] = {
            "cycle": {"stage": Stage.ACTIVE, "interval": INTERVAL},
            "policy": {"name": settings.policy, "model": settings.model},
            "metrics": {"listen": "" if settings.metrics_port is None else f"127.0.0.1:{settings.metrics_port}"},
            "state": {"directory": str(directory), "mirror": ""},
        }
        lines = []
        for section, values in chosen.items():
            lines += [f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in values.items()), ""]
        return "\n".join(lines)

    def keep(self, directory: Path, summary: Mapping[str, Any]) -> None:
        """Leave configuration, last record, log and summary in a directory that stays.

        Raises:
            OSError: it cannot be written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for name in (RECORD, self.log_file.name):
            if (self.directory / name).exists():
                shutil.copyfile(self.directory / name, directory / name)
        (directory / "config.toml").write_text(self._config(directory), encoding="utf-8")
        (directory / "summary.json").write_text(json.dumps(summary, indent=2, default=str) + "\n", encoding="utf-8")

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
        self._plan = planned(self._run_times, snapshot, policy, config, applied, book)
        return self._plan

    # --- moving

    @property
    def over(self) -> bool:
        """Whether all that will ever start has started, in both clusters."""
        now = self.steered.simulation.now
        if now < self._last_submission:
            return False
        waiting = len(self.steered.simulation.pending) + len(self.plain.simulation.pending)
        return not waiting or now > self._last_submission + PATIENCE

    def step(self) -> CycleReport:
        """To the next full minute, in both clusters, and one cycle of the daemon."""
        until = (math.floor(self.steered.simulation.now / INTERVAL) + 1.0) * INTERVAL
        self.steered.advance(until)
        self.plain.advance(until)
        if until % self.config.estimates.refresh == 0:
            self._run_times.refresh()  # in the service a thread of its own does this
        report = self.daemon.tick()
        if report is None:  # pragma: no cover - one thread, one cycle at a time
            raise RuntimeError("a cycle is running already")
        self._report = report
        self.cycles += 1
        self.raised += report.raised
        self.outcomes.update(result.outcome for result in report.results)
        if self._plan is not None and (self._busiest is None or _places(self._plan) > _places(self._busiest[0])):
            self._busiest = self._plan, report.results
        if self.proof is None and self._is_worth_proving():
            self.prove()
        return report

    def _is_worth_proving(self) -> bool:
        """Late, and while some jobs are raised if there is such a moment before the last submission."""
        now, submit = self.steered.simulation.now, self.jobs.submit_time
        if now >= self._last_submission:
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

    # --- how things stand

    def scene(self) -> Scene:
        """Now."""
        submitted = int((self.jobs.submit_time <= self.steered.simulation.now).sum())
        asked = np.maximum(self.steered.simulation.asked.partition, 0)
        groups = [(part.name, asked == code, part.nodes) for code, part in enumerate(self.shape.partitions)]
        if len(groups) > 1:
            every = np.arange(len(self.shape.nodes), dtype=np.int32)
            groups.append(("all", np.ones(len(self.jobs), dtype=np.bool_), every))
        report, both = self._report, (self.steered, self.plain)
        record = None if report is None else report.record
        return Scene(
            time=self.steered.simulation.now - float(self.jobs.submit_time[0]),
            submitted=submitted,
            jobs=len(self.jobs),
            cycles=self.cycles,
            sentence=report.sentence if report is not None else "",
            raised=0 if report is None else report.raised,
            lent=0.0 if record is None else sum(one.lent for one in record.lent.values()),
            applied=self.outcomes[Outcome.APPLIED],
            parts=tuple(
                Part(name, int(self.shape.nodes.gpus[nodes].sum()), *(self._side(of, members) for of in both))
                for name, members, nodes in groups
            ),
        )

    def _side(self, slurm: SimulatedSlurm, members: Bools) -> Side:
        simulation, submit = slurm.simulation, self.jobs.submit_time
        fate, now = simulation.fate, simulation.now
        counts = members & (submit <= now) & (fate != JobFate.CANCELLED) & (fate != JobFate.REJECTED)
        start = np.where(np.isnan(simulation.start), now, simulation.start)
        return Side(
            queue=int((counts & (fate == JobFate.WAITING)).sum()),
            busy=int(self.jobs.gpus[members & (fate == JobFate.RUNNING)].sum()),
            wait=float((start - submit)[counts].mean()) if counts.any() else math.nan,
        )

    # --- what came of it

    def summary(self, *, interrupted: bool = False) -> dict[str, Any]:
        """Everything, as JSON-able data, of the jobs that started in both clusters. Ends the demonstration: the running
        jobs run to their end without the daemon.
        """
        seconds = self.steered.simulation.now - float(self.jobs.submit_time[0])
        proof = self.proof or self.prove()
        scene = self.scene()
        if self._busiest is not None:
            made, results = self._busiest
            save(self.directory, record(made, results=results))
        ends = [self.times(slurm) for slurm in (self.plain, self.steered)]
        compared = np.logical_and(*(~np.isnan(start) for start, _ in ends))
        plain, steered = (
            measure(
                self.jobs.submit_time,
                start,
                end,
                self.jobs.gpus.astype(np.float64),
                compared,
                self.jobs.user,
                float(self.shape.gpus),
            ).as_dict()
            for start, end in ends
        )
        fate = self.steered.simulation.fate
        return {
            "settings": asdict(self.settings),
            "interrupted": interrupted,
            "policy": {"name": self.policy.name, "what": what_it_is(self.policy.name, self.settings.policy)},
            "cluster": {
                "nodes": len(self.shape.nodes),
                "gpus": self.shape.gpus,
                "gpu_types": list(self.shape.nodes.gpu_types),
                "partitions": [partition.name for partition in self.shape.partitions],
            },
            "virtual_seconds": seconds,
            "cycles": self.cycles,
            "raised_per_cycle": self.raised / max(self.cycles, 1),
            "changes": {outcome.value: self.outcomes[outcome] for outcome in Outcome},
            "jobs": {
                "all": len(self.jobs),
                "submitted": scene.submitted,
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

    def times(self, slurm: SimulatedSlurm) -> tuple[Floats, Floats]:
        """Start and end of each job that has started; one that runs will end when its work or its limit does."""
        simulation = slurm.simulation
        result = simulation.result()
        rest = np.minimum(self.jobs.run_time, simulation.estimates.time_limit)
        end = np.where(np.isnan(result.end), result.start + rest, result.end)
        return result.start, end

    def _example(self) -> int | None:
        """A job worth explaining: the one that was raised furthest, of all cycles."""
        if self._busiest is None or not len(self._busiest[0].rows):
            return None
        made = self._busiest[0]
        return int(made.snapshot.jobs.job_id[made.rows[np.argmax(made.base_rank - made.rank)]])


def _places(made: Plan) -> int:
    """That the job is ahead which is raised furthest."""
    return int((made.base_rank - made.rank).max(initial=0))


def play(
    demo: Demo,
    show: Callable[[Scene], None],
    clock: Clock,
    *,
    stop: Callable[[], bool],
    every: float,
    speed: float = 0.0,
    seconds: float = math.inf,
) -> bool:
    """Run to the end. Returns whether it was cut short: by `stop`, which is asked after each cycle, or after so many
    real `seconds`. `show` is told how things stand, `every` so many seconds, and at the end. `speed`: virtual seconds
    per real second at most; 0: as fast as it goes.
    """
    began = shown = clock.monotonic()
    cut = False
    while not demo.over and not cut:
        demo.step()
        now = clock.monotonic()
        if speed > 0.0 and (ahead := demo.cycles * INTERVAL / speed - (now - began)) > 0.0:
            clock.sleep(ahead)
            now = clock.monotonic()
        cut = stop() or now - began >= seconds
        if now - shown >= every:
            shown = now
            show(demo.scene())
    show(demo.scene())
    return cut


def what_it_is(policy: str, configured: str) -> str:
    """An honest sentence about the policy that made the difference."""
    if configured == "model":
        return (
            f"The learned model '{policy}', with rltuned's safety around it. What it gives over plain rules on real "
            "traces is in docs/learning.md; what it gives on your cluster, `rltuned gate` finds out."
        )
    return f"The plain rule '{policy}', with rltuned's safety around it; no learned model took part."
