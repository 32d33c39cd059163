"""The loop. Whatever happens in a cycle, the next one comes.

`Daemon.tick` is what the scheduler calls: one cycle (`steps`) with everything around it, on the clock that it is given.
Which stage is in force is decided anew in each cycle (`state`).
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

from rltuned.controller.cycle.parts import Parts
from rltuned.controller.cycle.policy import Loaded, load_policy
from rltuned.controller.cycle.report import CycleReport
from rltuned.controller.cycle.steps import Apply, Cycle, Forecast, GiveBack, MakePlan, Read, Reconcile, Tell
from rltuned.controller.give_back import pause
from rltuned.controller.health.clock import Moment
from rltuned.controller.health.runtime import Cause
from rltuned.controller.tell.logs import DEFECT
from rltuned.controller.tell.states import CycleOutcome
from rltuned.core.config import Config, Stage
from rltuned.core.errors import (
    RltunedError,
    SlurmDeniedError,
    SlurmError,
    SlurmParseError,
    SlurmUnavailableError,
)

_KINDS: Final[Mapping[type[SlurmError], str]] = {
    SlurmUnavailableError: "unavailable",
    SlurmParseError: "parse",
    SlurmDeniedError: "denied",
}


class Daemon:
    """The loop. One per process; `tick` and `reload` may be called from different threads."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.runtime, self.journal, self.state = parts, parts.runtime, parts.journal, parts.state
        self.liveness, self.slurmctld, self.restoring = parts.liveness, parts.slurmctld, parts.restoring
        runtime, journal = self.runtime, self.journal
        self._steps = [step(parts) for step in (Read, Reconcile, GiveBack, MakePlan, Apply, Forecast, Tell)]
        self._turn = threading.Lock()
        runtime.metrics.interval.set(runtime.config.cycle.interval)
        runtime.metrics.journal_damage.set(journal.damaged_lines)
        if journal.damage:
            runtime.log.error("journal.damaged", detail=journal.damage)
        self.liveness.beat()

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.runtime.config

    @property
    def stage(self) -> Stage:
        """The stage in force."""
        return self.state.stage

    # --- asked from outside, in any thread

    def alive(self) -> tuple[bool, str]:
        """Whether the loop moves, as the watchdog sees it."""
        moves = self.liveness.healthy()
        return moves, "the loop moves" if moves else "the loop has not moved for long"

    def ready(self) -> tuple[bool, str]:
        """Whether the daemon does what its configuration and its people want. A pause, a dry run and a standby are
        wanted: who waits for it to be ready need not wait for their end.
        """
        state, inactive = self.state, self.liveness.inactive
        if not self.liveness.healthy():
            return self.alive()
        if not self.liveness.acted:
            return False, "no cycle has ended well yet"
        if inactive > self.config.write.give_back_after:
            return False, f"the last cycle that did all it should ended {inactive:.0f} s ago; the log has the cause"
        why = f": {state.held_back}" if state.held_back else ""
        return not state.hindered, f"stage {state.stage}{why}"

    # --- the scheduler's entries

    def tick(self) -> CycleReport | None:
        """Run one cycle with everything around it. Never raises; None when the cycle before still runs."""
        if not self._turn.acquire(blocking=False):
            self._overrun("the cycle before still runs")
            return None
        clock, interval = self.runtime.clock, self.config.cycle.interval
        cycle = Cycle(clock.monotonic())
        try:
            self.liveness.in_cycle = True
            self.liveness.progress()
            self._look_at_lock()
            self._look_at_pause()
            self.parts.choice.follow_store()
            report = self._guarded(cycle)
            self._ended(report)
            self.parts.reporting.ended(report, cycle.phases, clock.monotonic() - cycle.began)
        finally:
            self.liveness.in_cycle = False
            self._turn.release()
        if clock.monotonic() - cycle.began > interval:
            self._overrun(f"the cycle took longer than its {interval:g} s")
        self.liveness.beat()
        return report

    def look_again(self) -> None:
        """Between two cycles: write again what backfill has undone of the last one's writes.

        Trouble with Slurm or the disk is left to the next cycle.
        """
        undoing, execution = self.parts.undoing, self.parts.execution
        if not undoing.watches or execution.stopping.is_set() or not self._turn.acquire(blocking=False):
            return
        try:
            self._look_at_lock()
            if self.state.writes and not self.liveness.given_up():
                undoing.again(self.parts.watched, self.slurmctld.budget, execution)
            else:
                undoing.forget()
        except RltunedError:
            undoing.forget()  # the next cycle finds the same, and says so
        except Exception:
            undoing.forget()
            self.runtime.metrics.errors.labels("other").inc()
            self.runtime.log.exception("look.defect", sentence=DEFECT)
        finally:
            self._turn.release()

    def _overrun(self, why: str) -> None:
        self.runtime.metrics.overruns.inc()
        self.runtime.log.warning("cycle.overrun", sentence=f"{why}; the next one starts when it is due.")

    def _look_at_lock(self) -> None:
        if not self.state.owns_files or self.parts.owns():
            return
        self.state.put(Cause.LOCK_LOST, "the lock's file was removed, so another rltuned may be at work")
        self.liveness.silent = True
        self.journal.let_go()
        self.parts.lending.let_go()
        self.runtime.log.error(
            "lock.lost",
            sentence="The file of the lock was removed. What is out is given back, and nothing is written any more.",
            remedy="find out who removes files of the state directory, then `systemctl restart rltuned`",
        )

    def _look_at_pause(self) -> None:
        """As the file says now: while it is there, the stage in force is at most shadow."""
        now = Moment.of(self.runtime.clock)
        found = pause.asked(self.config.state.directory, now, tidy=self.state.owns_files)
        self.state.put(Cause.PAUSED, None if found is None else found.sentence(now))
        self.runtime.metrics.paused.set(found is not None)

    # --- the cycle

    def _guarded(self, cycle: Cycle) -> CycleReport:
        slurmctld, metrics = self.slurmctld, self.runtime.metrics
        try:
            report = self._run(cycle)
        except SlurmError as error:
            metrics.errors.labels(_KINDS.get(type(error), "other")).inc()
            slurmctld.unavailable = isinstance(error, SlurmUnavailableError) and not slurmctld.answers()
            slurmctld.forget_facts()
            self._failed()
            why = f"Slurm could not be used: {error}"
        except RltunedError as error:
            why = str(error)
        except Exception as error:
            metrics.errors.labels("other").inc()
            self.runtime.log.exception("cycle.defect", sentence=DEFECT)
            self._failed()
            why = f"{type(error).__name__}: {error}"
        else:
            if report.outcome is not CycleOutcome.WAITING:
                slurmctld.unavailable = False
                slurmctld.breaker.success()
            return report
        return CycleReport(CycleOutcome.FAILED, self.stage, why)

    def _failed(self) -> None:
        self.parts.undoing.forget()
        if self.slurmctld.breaker.failure(self.runtime.clock.monotonic()):
            self.state.alarm("the circuit breaker opened")

    def _run(self, cycle: Cycle) -> CycleReport:
        """Step by step, up to the first one that reports. SlurmError: the cluster could not be read."""
        slurmctld = self.slurmctld
        if not slurmctld.may_be_asked():
            wait = max(0.0, slurmctld.breaker.until - self.runtime.clock.monotonic())
            return CycleReport(CycleOutcome.WAITING, self.stage, f"Slurm is left alone for another {wait:.0f} s")
        slurmctld.budget.start_cycle()
        self.parts.undoing.forget()
        reports = (step.run(cycle) for step in self._steps)
        return next(report for report in reports if report is not None)

    def _ended(self, report: CycleReport) -> None:
        """Give everything back when Slurm has answered for long, but no plan could be carried out. Never raises."""
        liveness, log = self.liveness, self.runtime.log
        liveness.ended_cycle(acted=report.acted, slurm_away=self.slurmctld.unavailable)
        if liveness.unable >= self.config.write.give_back_after:
            # What the dead-man timer may have done concerns the next cycle's comparison. What is given back is read
            # anew.
            outdated, liveness.outdated = liveness.outdated, False
            try:
                if restored := self.restoring.give_all_back():
                    log.error(
                        "queue.given_back",
                        sentence=f"No plan could be carried out for {liveness.unable:.0f} s: {restored} jobs were given"
                        " back to Slurm. The next plan starts anew.",
                    )
            except RltunedError as error:
                log.warning("queue.not_given_back", sentence="It is tried again in the next cycle.", reason=str(error))
            except Exception:
                log.exception("cycle.defect", sentence=DEFECT)
            finally:
                liveness.outdated |= outdated
        retries = self.restoring.retries
        retries.keep(self.journal.entries)
        self.runtime.metrics.unable.set(liveness.unable)
        self.runtime.metrics.unreturned.set(len(retries.waiting))

    # --- life

    def reload(self, load: Callable[[], Config], policy_of: Callable[[Config], Loaded] = load_policy) -> bool:
        """Swap in a new configuration and policy between two cycles, if both are good; else keep the old ones.

        A change of `slurm`, `state`, `metrics` or `users` needs a restart: it is refused with a warning.
        """
        log, metrics = self.runtime.log, self.runtime.metrics
        kept = {name: getattr(self.config, name) for name in ("slurm", "state", "metrics", "users")}
        try:
            loaded = load()
            config = loaded.model_copy(update=kept)
            policy = policy_of(config)
        except (RltunedError, ImportError) as error:  # a package that was replaced meanwhile fits no more
            metrics.reloads.labels("refused").inc()
            log.error(  # noqa: TRY400 - a mistake of the admin's, not a defect: no traceback
                "reload.refused", sentence="The old configuration stays in force.", reason=str(error)
            )
            return False
        changed = [name for name, value in kept.items() if getattr(loaded, name) != value]
        if changed:
            log.warning("reload.partial", sentence=f"[{'], ['.join(changed)}] change only with a restart.")
        with self._turn:
            self.runtime.config = config
            self.parts.undoing.forget()
            self.parts.choice.replace(policy)
            self.state.forgive()
            self.restoring.retries.soon()
            self.slurmctld.reconfigured()
        metrics.interval.set(config.cycle.interval)
        metrics.reloads.labels("applied").inc()
        log.info("reload.done", sentence=f"Policy {policy.name}, stage {config.cycle.stage}.")
        return True

    def request_stop(self) -> None:
        """Let the running cycle end early, between two batches."""
        self.parts.execution.stopping.set()

    def stop(self) -> None:
        """Wait for the running cycle, then close what is open. ``rltuned restore`` gives the queue back."""
        with self._turn:
            if self.parts.start_times is not None and self.parts.reporting.keeps_records:
                self.parts.start_times.save()
            self.journal.close()
            self.liveness.end()
