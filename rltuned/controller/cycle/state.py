"""Whether the daemon may write to Slurm, as it is now."""

from rltuned.controller.health.liveness import Liveness
from rltuned.controller.health.runtime import ALARMS, WANTED, WRITING, Cause, Refusal, Runtime, may_write
from rltuned.controller.health.slurmctld import Slurmctld
from rltuned.core.config import Stage


class DaemonState:
    """Nothing stands against writing, or a `Refusal`."""

    def __init__(self, runtime: Runtime, liveness: Liveness, slurmctld: Slurmctld, *, dry_run: bool) -> None:
        self._runtime, self._liveness, self._slurmctld = runtime, liveness, slurmctld
        self._standing: dict[Cause, str] = {}
        self.alarms = 0  # in a row
        if dry_run:
            self.put(Cause.DRY_RUN, "dry run")

    def put(self, cause: Cause, detail: str | None) -> None:
        """Note what stands against writing; None: this no longer does."""
        if detail is None:
            self._standing.pop(cause, None)
        else:
            self._standing[cause] = detail

    @property
    def refusal(self) -> Refusal | None:
        """Why nothing may be written, of several reasons the first; None: it may."""
        standing, liveness = dict(self._standing), self._liveness
        if liveness.unseen_for(0.5 * liveness.stale_after):
            cause = "no state directory takes the heartbeat, so the dead-man timer would undo what is written"
            standing[Cause.UNSEEN] = cause
        if lacking := self._slurmctld.refusal:
            standing[lacking.cause] = lacking.detail
        return may_write(standing)

    @property
    def demoted(self) -> bool:
        """Whether alarms keep the stage at shadow, whatever else does."""
        return Cause.DEMOTED in self._standing

    @property
    def owns_files(self) -> bool:
        """Whether the state directory is this daemon's: neither in a dry run nor without the lock."""
        return not self._standing.keys() & {Cause.DRY_RUN, Cause.LOCK_LOST}

    @property
    def held_back(self) -> Refusal | None:
        """Why the configured stage, which writes, is not in force; None: it is."""
        return self.refusal if self._runtime.config.cycle.stage in WRITING else None

    @property
    def hindered(self) -> bool:
        """Whether the configured stage is not in force although nobody wants it so."""
        return (held_back := self.held_back) is not None and held_back.cause not in WANTED

    @property
    def stage(self) -> Stage:
        """The stage in force: the configured one, or shadow where it writes and writing is not allowed."""
        return Stage.SHADOW if self.held_back else self._runtime.config.cycle.stage

    @property
    def writes(self) -> bool:
        """Whether the stage in force writes to Slurm."""
        return self.stage in WRITING

    def alarm(self, why: str) -> None:
        """Count an alarm; `ALARMS` of them in a row make the stage fall to shadow."""
        self.alarms += 1
        if self.alarms < ALARMS or not self.writes:
            return
        fell = f"{self.alarms} alarms in a row, the last: {why}"
        self.put(Cause.DEMOTED, f"demoted: {fell}")
        self._runtime.metrics.demotions.inc()
        self._runtime.log.error(
            "stage.demoted",
            sentence=f"Fell back to stage shadow after {fell}. The queue is given back to Slurm.",
            remedy="find the cause, then `systemctl reload rltuned`",
        )

    def forgive(self) -> None:
        """Forget all alarms, and the demotion that they brought."""
        self.alarms = 0
        self.put(Cause.DEMOTED, None)
