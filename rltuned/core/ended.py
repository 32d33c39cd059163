"""Jobs that have ended, as the accounting remembers them: what run-time predictions are made from."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class FinalState(NamedTuple):
    """What it means that a job has ended in a state. Whatever it is, what ran was load."""

    tells: bool = False
    """The end was the job's own: it says how long such jobs run. Others are what the cluster did."""
    waited: bool = False
    """It may also end jobs that wait; these have run for 0 seconds, and never held anything."""


FINAL_STATES: Final[Mapping[str, FinalState]] = {
    "COMPLETED": FinalState(tells=True),
    "FAILED": FinalState(tells=True),
    "TIMEOUT": FinalState(tells=True),
    "OUT_OF_MEMORY": FinalState(tells=True),
    "CANCELLED": FinalState(tells=True, waited=True),  # by its user or an admin
    "DEADLINE": FinalState(tells=True, waited=True),
    "PREEMPTED": FinalState(),
    "NODE_FAIL": FinalState(),
    "BOOT_FAIL": FinalState(),
    "REQUEUED": FinalState(),  # the run before; the job has a later row
    "RESIZING": FinalState(),  # the time before it changed its size; it has a later row
    "REVOKED": FinalState(waited=True),  # of a federation: it started on another cluster
}
"""As sacct calls them, on every release."""


class EndedJob(NamedTuple):
    """One job that ran and ended. No text that its user wrote."""

    job_id: int
    user: str
    account: str
    partition: str
    gpus: int  # in all, as it asked for them; likewise CPUs
    time_limit: float  # seconds, infinite when unlimited, NaN where the accounting does not say
    run_time: float  # seconds
    end: float  # epoch seconds
    cpus: int = 1
    name: int = 0  # kind of its name, as of `core.name_kinds`; 0: not known


class Past(NamedTuple):
    """What the accounting remembers of a stretch of time."""

    jobs: list[EndedJob]  # in order of their ends
    left_out: list[str]  # why a row is not among them
    cancelled: list[int] = []  # noqa: RUF012 - before they ran; of a named tuple, so nobody changes it


def final(state: str) -> FinalState | None:
    """What State of sacct ("CANCELLED by 1000", too) means; None: the job has not ended."""
    return FINAL_STATES.get(state.partition(" ")[0])


def only_waited(state: str, seconds: float) -> bool:
    """Whether a job has ended in the queue, by State and ElapsedRaw of sacct. Releases differ in what they print as the
    start of such a job.
    """
    found = final(state)
    return not seconds > 0 and found is not None and found.waited
