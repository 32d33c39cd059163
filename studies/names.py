"""What names of jobs are worth where they tell, tell nothing or mislead: generated sites, for no trace has names.

``python -m studies.names [POLICY]`` prints the table of docs/estimates.md. What is generated are users who do a few
sorts of work that ask for the same and differ in how long they take; what differs between the sites is what they call
it.
"""

import enum
import sys
from typing import Final

import numpy as np

from rltuned.core.config import Config
from rltuned.core.tables import Floats, Ints
from rltuned.core.workers.pool import WorkerPool
from rltuned.lab.evaluate.evaluation import evaluate
from rltuned.lab.evaluate.evaluation_settings import OWN, as_configured
from rltuned.lab.evaluate.gate import prepare
from rltuned.lab.evaluate.names import NamesWorth, worth
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Source, Workload, workload

CLUSTER: Final = "8x4"
POLICY: Final = "saf:0.5"
WINDOW: Final = 250
JOBS: Final = 6_000
USERS: Final = 24
SORTS: Final = 3
"""Of each user's work: their run times are a factor of about `APART` from each other."""
APART: Final = 8.0
LIMIT: Final = 43_200.0  # seconds; the same of all, so that it tells nothing
SWEEP: Final = 4.0  # jobs of one sort that are sent at a time, in the mean
LOAD: Final = 0.97
HEAD: Final = """\
| names | error | order's cost | mean wait, with names over without | verdict |
| --- | --- | --- | --- | --- |"""


class Tell(enum.StrEnum):
    """What is known of a job by its name."""

    HALF = "tell, of half of the users"
    NOTHING = "tell nothing"
    MISLEAD = "mislead"
    """They tell the sort of a user's work, and mean another one every few jobs of that user."""


def site(tell: Tell, jobs: int, seed: int) -> Workload:
    """A generated site of so many jobs; the jobs themselves are the same whatever names tell."""
    rng, names = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    sizes = rng.geometric(1.0 / SWEEP, jobs)
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), jobs)) + 1]
    busy = 1.0 / np.arange(1, USERS + 1)
    user = np.repeat(rng.choice(USERS, len(sizes), p=busy / busy.sum()), sizes)[:jobs]
    sort = np.repeat(rng.integers(SORTS, size=len(sizes)), sizes)[:jobs]
    usual = rng.normal(5.0, 0.7, USERS)[:, None] + np.log(APART) * np.arange(SORTS)
    took = np.minimum(np.exp(usual[user, sort] + rng.normal(0.0, 0.4, jobs)).round(), LIMIT)
    gpus = rng.choice([1, 1, 1, 2, 4], USERS)[user]
    submit = _arrivals(rng, sizes, float((took * gpus).sum()))[:jobs]
    name = sort.copy()
    if tell is Tell.HALF:
        name = np.where(user % 2 == 0, sort, names.integers(SORTS, size=jobs))
    elif tell is Tell.NOTHING:
        name = names.integers(SORTS, size=jobs)
    else:
        for one in range(USERS):
            rows = np.flatnonzero(user == one)
            name[rows] = (sort[rows] + np.arange(len(rows)) // 5) % SORTS
    return workload(
        Source(f"a generated site whose names {tell}", form="synthetic"),
        submit,
        took,
        gpus,
        time_limit=LIMIT,
        cpus=gpus,
        user=[f"u{one}" for one in user],
        name_kind=[f"{kind:x}" for kind in name],
    )


def _arrivals(rng: np.random.Generator, sizes: Ints, work: float) -> Floats:
    """Seconds of submission: sweeps at any time, their jobs seconds apart; as much work as `LOAD` of the cluster."""
    first = np.sort(rng.random(len(sizes))) * work / (LOAD * parse_shape(CLUSTER).gpus)
    within = np.concatenate([np.arange(size) for size in sizes]) * 5.0
    return np.asarray(np.sort((np.repeat(first, sizes) + within).round()), dtype=np.float64)


def measured(tell: Tell, policy: str = POLICY, jobs: int = JOBS, seed: int = 7, workers: int = 2) -> NamesWorth:
    """What names are worth on a generated site, by windows as those of `rltuned gate`; jobs wait under the policy."""
    asked = {"trace": f"generated, names {tell}", "cluster": CLUSTER, "policies": f"{OWN},{policy}"}
    evaluation = prepare(as_configured(Config(), asked), site(tell, jobs, seed), parse_shape(CLUSTER), "", WINDOW)
    pool = WorkerPool(workers)
    return worth(evaluation, policy, pool, evaluate(evaluation, pool)[policy])


def row(tell: Tell, found: NamesWorth) -> str:
    """Of the table."""
    cells = [f"{found.means[name][0]:.2f} → {found.means[name][1]:.2f}" for name in ("error", "cost")]
    return f"| {tell} | {' | '.join(cells)} | {found.wait} | {'on' if found.on else 'off'} |"


def main(policy: str) -> None:
    """Prints the table."""
    print(HEAD)  # noqa: T201
    for tell in Tell:
        print(row(tell, measured(tell, policy)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else POLICY)
