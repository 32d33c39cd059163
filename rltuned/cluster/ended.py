"""Jobs that have ended, as the accounting remembers them: what run-time predictions are made from."""

from typing import NamedTuple


class EndedJob(NamedTuple):
    """One job that ran and ended. No text that its user wrote."""

    job_id: int
    user: str
    account: str
    partition: str
    gpus: int
    """In all, as it asked for them; likewise CPUs."""
    time_limit: float
    """Seconds, infinite when unlimited, NaN where the accounting does not say."""
    run_time: float
    """Seconds."""
    end: float
    """Epoch seconds."""
    cpus: int = 1


class Past(NamedTuple):
    """What the accounting remembers of a stretch of time."""

    jobs: list[EndedJob]
    """In order of their ends."""
    left_out: list[str]
    """Why a row is not among them."""
    cancelled: list[int] = []  # noqa: RUF012 - of a named tuple: nobody changes it
    """Jobs that were cancelled before they ran."""
