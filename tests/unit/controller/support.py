"""Small helpers of the daemon's tests."""

import contextlib
import io
import os
import pickle
import random
import resource
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unit.controller.model_slurm import ModelSlurm, VirtualClock

from rltuned.cli.main import main
from rltuned.controller.cycle.loop import Daemon
from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.policy import load_policy
from rltuned.controller.cycle.report import CycleReport
from rltuned.controller.give_back.batches import RestoreReport, Slurm, WhatToRestore, restore
from rltuned.controller.health.rpc_budget import Budget
from rltuned.controller.health.runtime import Runtime
from rltuned.controller.tell.logs import make
from rltuned.controller.tell.metrics import Metrics
from rltuned.controller.write.apply import Applier, Result
from rltuned.controller.write.claims import SETTLE_SECONDS
from rltuned.controller.write.journal import Journal
from rltuned.controller.write.reconcile import Reconciler, view
from rltuned.core.changes import Change, Field, SiteFactor
from rltuned.core.config import Config, StateSection
from rltuned.decide.place.outcome import SolveOutcome
from rltuned.decide.scope import Veto


def all_metrics() -> Metrics:
    """With every label that a daemon knows."""
    return Metrics([veto.value for veto in Veto], [outcome.value for outcome in SolveOutcome])


def make_daemon(config: Config, reader: Any, writer: Callable[[], Any] | None, clock: Any, **values: Any) -> Daemon:
    """The loop as ``rltuned run`` makes it; `log`: a stream that gets JSON lines."""
    journal = Journal.open(config.state.directory, config.state.mirror)
    log = make("debug", "json", values.pop("log", None) or io.StringIO())
    parts = Parts(
        runtime=Runtime(config, clock, log, all_metrics()),
        policy=load_policy(config),
        reader=reader,
        writer=writer,
        journal=journal,
        rng=random.Random(1),
        **values,
    )
    return Daemon(parts)


def planned(report: CycleReport) -> int:
    """Changes that the cycle's plan wanted."""
    return 0 if report.record is None else len(report.record.changes)


def as_user(uid: int, call: Callable[[], Any]) -> Any:
    """What `call` returns, or raises, in a process of that user. Only root may become another one."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        # Since Python 3.12, where other threads run. The child only does what needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            outcome = call(), None
        except BaseException as error:  # noqa: BLE001 - handed over
            outcome = None, error
        with os.fdopen(send, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        value, error = pickle.load(pipe)  # noqa: S301 - our own child's
    os.waitpid(child, 0)
    if error is not None:
        raise error
    return value


def typed_as(uid: int, *words: object) -> tuple[Any, str, str]:
    """Exit code, output and errors of a command of that user's."""

    def call() -> tuple[Any, str, str]:
        code, out, err = None, io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main([str(word) for word in words])
            except SystemExit as end:
                code = end.code
        return code, out.getvalue(), err.getvalue()

    code, out, err = as_user(uid, call)
    return code, out, err


def unlimited() -> Budget:
    return Budget(limited=False, burst=24, rate=1.5, per_cycle=5000)


@contextlib.contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """The kernel refuses to write beyond `size` bytes of any file: a full disk, for real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@dataclass
class Bench:
    """A model Slurm, a journal on disk, and the steps of a cycle."""

    slurm: ModelSlurm
    directory: Path
    journal: Journal
    reconciler: Reconciler

    @classmethod
    def make(cls, directory: Path, priorities: Sequence[int] = (), **values: object) -> "Bench":
        slurm = ModelSlurm(VirtualClock(), **values)  # type: ignore[arg-type]
        for priority in priorities:
            slurm.submit(priority)
        slurm.save_state()
        return cls(slurm, directory, Journal.open(directory / "state", directory / "mirror"), Reconciler())

    @property
    def clock(self) -> VirtualClock:
        return self.slurm.clock

    def config(self, **sections: Any) -> Config:
        return Config(
            state=StateSection(directory=self.directory / "state", mirror=self.directory / "mirror"), **sections
        )

    def restart_daemon(self) -> None:
        """What is in memory is gone; what is on disk is loaded."""
        self.journal.close()
        self.journal = Journal.open(self.directory / "state", self.directory / "mirror")
        self.reconciler = Reconciler()

    def reconcile(self) -> tuple[int, ...]:
        snapshot = self.slurm.reader().snapshot(self.clock.time())
        calculated = bool(snapshot.jobs.site_known.any())
        return self.reconciler.reconcile(
            self.journal, view(snapshot, self.journal), self.clock.steady(), calculated=calculated
        )

    def reorder(self, order: Sequence[int]) -> list[Change]:
        """Changes that bring the manageable jobs of `order` into that order: each is raised before those behind it."""
        slurm, applied = self.slurm, self.journal.applied().by_job
        jobs = []
        for job_id in order:
            job, claim = slurm.jobs.get(job_id), applied.get(job_id)
            if job is None or job.state != "PD" or job.hold or job.dependent or (claim is not None and claim.foreign):
                continue
            if slurm.listed(job) and job.site_factor == (claim.site_factor if claim else 0):
                jobs.append(job)
        changes, behind = [], 0
        for position, job in reversed(list(enumerate(jobs))):
            base = slurm.priority(job) - job.site_factor
            behind = max(base, behind + 1)
            of, after = Field.SITE_FACTOR, SiteFactor(behind - base)
            if job.site_factor != after:
                changes.append(Change(job.job_id, job.submit_time, of, job.site_factor, after, position))
        turns = sorted(changes, key=lambda change: (not change.gives_back, change.position))
        turned = [change._replace(turn=turn) for turn, change in enumerate(turns)]
        return sorted(turned, key=lambda change: change.position)

    def apply(self, changes: Sequence[Change], budget: Budget | None = None, **values: object) -> list[Result]:
        slurm = self.slurm
        applier = Applier(slurm.reader(), slurm.writer(), self.journal, budget or unlimited(), self.clock)
        return applier.apply(changes, **values)  # type: ignore[arg-type]

    def cycle(self, order: Sequence[int]) -> list[Result]:
        self.reconcile()
        results = self.apply(self.reorder(order))
        self.clock.sleep(60.0)
        return results

    def restore(
        self, budget: Budget | None = None, asked: WhatToRestore | None = None, **values: object
    ) -> RestoreReport:
        facts, reader, writer = values.pop("facts", None), self.slurm.reader(), self.slurm.writer()
        slurm = Slurm(reader, writer, budget or unlimited(), self.clock, facts)
        return restore(self.journal, slurm, asked or WhatToRestore(), **values)

    def forgets_everything(self) -> bool:
        """Whether the next restore, once slurmctld has surely saved its state, finds nothing and empties the
        journal."""
        self.clock.sleep(SETTLE_SECONDS)
        written = self.slurm.updates
        report = self.restore()
        return self.journal.entries == {} and report.restored == () and self.slurm.updates == written

    def priorities(self) -> dict[int, int]:
        return {job: self.slurm.priority(self.slurm.jobs[job]) for job in self.slurm.jobs}
