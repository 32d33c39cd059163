"""When the daemon tries again to give a job back: later after each failure, and for ever."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rltuned.daemon.fields import Leftover


@dataclass(slots=True)
class Retries:
    """Jobs that could not be given back, and when each is tried again. Times are monotonic seconds."""

    first: float
    """Seconds until the second try; doubles with each failure."""
    longest: float
    """Longest wait, seconds."""
    final: set[int] = field(default_factory=set)
    """Jobs on which something stays that Slurm has no way to take back."""
    _waits: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By job id: when it is due, and the wait that ends then."""

    def due(self, jobs: Iterable[int], now: float) -> list[int]:
        """Those of `jobs` that may be tried now."""
        return [job for job in jobs if self._waits.get(job, (now, 0.0))[0] <= now]

    def note(self, tried: Collection[int], left: Sequence[Leftover], now: float) -> list[Leftover]:
        """Take in how a try went. Returns what is left, as far as it is said for the first time.

        What Slurm has no way to take back (`Leftover.final`) is no failure: another try would change nothing.
        """
        failed = {item.job_id: item for item in left if not item.final}
        new = [item for item in left if item.final and item.job_id not in self.final]
        self.final.update(item.job_id for item in new)
        for job in tried:
            if job not in failed:
                self._waits.pop(job, None)
                continue
            if job not in self._waits:
                new.append(failed[job])
            wait = min(self.longest, max(self.first, 2.0 * self._waits.get(job, (0.0, 0.0))[1]))
            self._waits[job] = (now + wait, wait)
        return new

    @property
    def waiting(self) -> list[int]:
        """Jobs that could not be given back yet."""
        return sorted(self._waits)

    def keep(self, jobs: Collection[int]) -> None:
        """Forget all but these jobs."""
        for job in self._waits.keys() - set(jobs):
            del self._waits[job]
        self.final.intersection_update(jobs)

    def soon(self) -> None:
        """Try all again at the next opportunity: something has changed (a reload, the privilege)."""
        self._waits.clear()
