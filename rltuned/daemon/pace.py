"""APScheduler, paced by the monotonic clock: cycles come at a fixed rate while the wall clock is set under them."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from apscheduler.schedulers.background import BackgroundScheduler

from rltuned.daemon.clock import Clock

SET: Final = 0.005
"""Smaller differences between the clocks (seconds) are ignored: they are the time between reading one and the other."""


class SteadyScheduler(BackgroundScheduler):  # type: ignore[misc]  # APScheduler has no annotations
    """A scheduler whose jobs, each at an interval or once at once, keep their pace.

    APScheduler remembers when a job is due as a time of the wall clock. A clock set back by an hour would stop the jobs
    for that hour; one set forward would run them at once. Here these times move along with the wall clock, whenever
    the scheduler looks at its jobs. How long it waits until it looks again does not depend on the wall clock.
    """

    def __init__(self, clock: Clock, **options: Any) -> None:
        """`options`: APScheduler's."""
        self._clock = clock
        self._ahead = self._wall_ahead()
        super().__init__(**options)

    def now(self) -> datetime:
        """The wall clock's time, as APScheduler takes it."""
        return datetime.fromtimestamp(self._clock.time(), UTC)

    def _wall_ahead(self) -> float:
        return self._clock.time() - self._clock.monotonic()

    def _process_jobs(self) -> Any:
        """Seconds until the next look. The name is APScheduler's (3.x): what its loop calls at each wake-up."""
        while True:
            self._follow()
            wait = super()._process_jobs()
            # Set in between: then the wait is as wrong as the times.
            if abs(self._wall_ahead() - self._ahead) < SET:
                return wait

    def _follow(self) -> None:
        ahead = self._wall_ahead()
        moved = ahead - self._ahead
        if abs(moved) < SET:
            return
        self._ahead = ahead
        for job in self.get_jobs():
            # A clock set while APScheduler works out the next time would count twice: hence at most an interval. What
            # is to run once, is to run now.
            latest = self.now() + getattr(job.trigger, "interval", timedelta())
            due = min(job.next_run_time + timedelta(seconds=moved), latest)
            self.modify_job(job.id, next_run_time=due)
