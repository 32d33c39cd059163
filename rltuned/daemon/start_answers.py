"""What `rltuned when` answers: admins from the decision record, everybody else from their own user record."""

import os

from rltuned.config import Config
from rltuned.daemon import decisions
from rltuned.daemon.user_records import fetch, only_own
from rltuned.decide.explain import start_of
from rltuned.decide.scope import MEANING
from rltuned.errors import RltunedError
from rltuned.forecast.start_offer import Asked, JobAnswer, Offer, offer_of

_NOTHING = (
    "no forecast of start times is made here: it needs a plan (stage shadow, canary or active), Numba "
    "(docs/rollout.md), and rollout.forecast must not be off"
)


def of_job(config: Config, job_id: int) -> JobAnswer:
    """When a pending job starts; RltunedError says why nothing can be read."""
    if only_own(config):
        own = fetch(config.users, os.geteuid())
        for job in own.jobs:
            if job.job_id == job_id:
                return JobAnswer(job_id, own.time, job.start, job.likely, job.meaning, own.outcomes)
        return JobAnswer(job_id, own.time, None, None, "It is not among your pending jobs.", own.outcomes)
    made = decisions.load(config.state.directory)
    if made.starts is None:
        raise RltunedError(_NOTHING)
    found = start_of(made, job_id)
    if found is not None:
        meaning = f"{found.before} jobs stand before it." if found.before else "It is the first in the queue."
        start = None if found.low is None else (found.low, found.high)
        return JobAnswer(job_id, made.time, start, found.middle, meaning, found.outcomes)
    meaning = "It is not among the jobs at the front that a forecast looks at: it runs, has ended, or is further back."
    for veto, ids in made.vetoed.items():
        if job_id in ids:
            meaning = f"Nothing is forecast: {MEANING[veto]}."
            break
    return JobAnswer(job_id, made.time, None, None, meaning, made.starts.outcomes)


def offer(config: Config, asked: Asked) -> Offer:
    """When a job would start that nobody has submitted; RltunedError says why nothing is known."""
    if only_own(config):
        own = fetch(config.users, os.geteuid())
        probes, outcomes = own.probes, own.outcomes
    else:
        starts = decisions.load(config.state.directory).starts
        probes, outcomes = ((), 0) if starts is None else (starts.probes, starts.outcomes)
    if not probes:
        raise RltunedError(_NOTHING)
    return offer_of(asked, probes, outcomes)
