"""The rule, against its plain reference (tests/oracles/lending.py), over invented queues."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import lending

from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Applied
from rltuned.core.config import Config, LendSection, ScopeSection
from rltuned.decide.loans import Book, Given, Offer, Part
from rltuned.decide.managed import managed_jobs
from rltuned.decide.raising import raise_jobs

from .conftest import NOW, make_snapshot, pending

NODES = {"": {0, 1, 2, 3, 4}, "p100": {0, 1}, "k80": {2, 3}, "m40": {4}}
TIERS = {"gpu": {1}, "share": {1}, "urgent": {10}, "gpu,share": {1}, "gpu,urgent": {1, 10}}
TASKS = {(0, 0): 1, (1, 0): 1, (3, 0): 3, (5, 2): 2}
"""Tasks that may start, by those that wait and the limit."""


def a_job(rng, number):
    """One job, as the columns that differ."""
    several = rng.random() < 0.2
    priority = rng.randint(1, 30)
    ours = rng.choice([0, 0, 0, 3, 10, 30])
    return {
        "job_id": number,
        "user": rng.choice("abcdefgh"),
        "submit": NOW - 100_000.0 + rng.randint(0, 3),
        "wait": rng.choice([0.0, 1000.0, 9000.0, 9000.0, 90_000.0, 90_000.0]),
        "partition": rng.choice(["gpu,share", "gpu,urgent"] if several else ["gpu", "gpu", "gpu", "share", "urgent"]),
        "base": priority,
        "least": rng.randint(1, priority) if several else priority,
        "gpus": rng.randint(1, 4),
        "type": rng.choice(["", "", "", "p100", "k80", "m40"]),
        "exclude": rng.choice(["", "", "", "p100-1", "p100-[1-2]"]),
        "limit": rng.choice([600.0, 3600.0]),
        "decided": rng.choice([""] * 9 + ["nice=1", "qos=1", "qos=2 or qos=1"]),
        "tasks": rng.choice([(0, 0), (0, 0), *TASKS]),
        "deadline": rng.random() < 0.05,
        "blocked": rng.random() < 0.1,
        "reserved": rng.random() < 0.05,
        "foreign": 0 if ours else rng.choice([0] * 18 + [5, -3]),
        "ours": ours,
        "lent": rng.choice([0.0] * 6 + [0.5, 0.9, 1.0, 1.3]),
        "seconds": rng.choice([60.0, 200.0, 1000.0]),
        "unwanted": rng.random() < 0.3,
    }


def a_queue(seed):
    """The queue, whom the policy wants, what is promised, `lend.share` and `lend.most`."""
    rng = random.Random(seed)
    n = rng.choice([rng.randint(2, 14), rng.randint(2, 14), 45])
    queue = [a_job(rng, number) for number in range(1, n + 1)]
    wanted = rng.sample(range(1, n + 1), rng.randint(1, n))
    promised = [(rng.randint(1, n), rng.choice([0.5, 1.0, 2.0])) for _ in range(rng.randint(0, 3))]
    return queue, wanted, promised, rng.choice([0.0, 0.1, 0.1, 0.1, 0.1, 1.0]), rng.choice([1, 2, 16, 16])


def nodes_of(job):
    nodes = NODES[job["type"]]
    return frozenset(nodes - {"": set(), "p100-1": {0}, "p100-[1-2]": {0, 1}}[job["exclude"]])


def added_up(terms):
    return sum(
        -int(value) if name == "nice" else int(value) for name, value in (term.split("=") for term in terms.split())
    )


def by_reference(queue, wanted, promised, share, most):
    """The queue, as the reference has it."""
    known = []
    for job in queue:
        size = float(job["gpus"] * TASKS[job["tasks"]])
        part = share * job["wait"] * size
        lent = lent_by(job)
        terms = [added_up(text) + job["foreign"] for text in job["decided"].split(" or ")]
        priorities = {max(value + job["foreign"], 1) for value in (job["base"], job["least"])}
        known.append(
            lending.Job(
                job_id=job["job_id"],
                turn=(job["submit"], job["job_id"]),
                user=job["user"],
                priorities=tuple(priorities),
                tiers=frozenset(TIERS[job["partition"]]),
                reserved=job["reserved"],
                nodes=nodes_of(job),
                size=size,
                asks=(job["gpus"], job["limit"], job["type"], job["exclude"], job["partition"]),
                least_decided=min(terms),
                most_decided=max(terms),
                can_start=not job["blocked"],
                in_scope=not job["deadline"],
                lendable=part - lent,
                lent=lent,
                current=max(job["base"] + job["ours"], 1),
            )
        )
    seconds = {job["job_id"]: job["seconds"] for job in queue}
    promises = {
        borrower: {part.lender: part.gpus * offer.seconds for part in offer.parts}
        for borrower, offer in unwanted(queue, promised).items()
    }
    return lending.Lending(known, wanted, seconds, promises, most)


def lent_by(job):
    """By how long it has waited, whatever the share is now."""
    return job["lent"] * 0.1 * job["wait"] * job["gpus"] * TASKS[job["tasks"]]


def unwanted(queue, promised):
    """What jobs that could not be given back hold."""
    carried = [job for job in queue if job["ours"] and job["unwanted"]]
    by_id = {job["job_id"]: job for job in queue}
    parts = {at: Part(at, int(by_id[at]["submit"]), gpus) for at, gpus in promised}
    return {
        job["job_id"]: Offer(int(job["submit"]), 1, 1, 1.0, 300.0, tuple(parts.values()), unwanted=True)
        for job in carried[:2]
    }


def by_rltuned(queue, wanted, promised, share, most):
    """Priority and lenders of each raised job, in order, as `raise_jobs` has it."""
    n = len(queue)

    def column(name):
        return [job[name] for job in queue]

    site = np.array(column("ours")) + np.array(column("foreign"))
    table = pending(
        n,
        user=column("user"),
        submit_time=column("submit"),
        eligible_time=NOW - np.array(column("wait")),
        partition=column("partition"),
        priority=np.maximum(np.array(column("base")) + site, 1),
        site_factor=site,
        base=column("base"),
        base_least=column("least"),
        gpus=column("gpus"),
        gpu_type=column("type"),
        exc_nodes=column("exclude"),
        time_limit=column("limit"),
        decided=column("decided"),
        array_tasks=[tasks for tasks, _ in column("tasks")],
        array_limit=[limit for _, limit in column("tasks")],
        deadline=[NOW if near else np.nan for near in column("deadline")],
        reason=["Licenses" if blocked else "Priority" for blocked in column("blocked")],
        reservation=["lab" if reserved else "" for reserved in column("reserved")],
    )
    applied = {
        job["job_id"]: Applied(job["job_id"], int(job["submit"]), site_factor=job["ours"])
        for job in queue
        if job["ours"]
    }
    config = Config(scope=ScopeSection(exclude_reservations=()))
    managed = managed_jobs(make_snapshot(table), config, AppliedChanges(applied))
    ids = table.job_id[managed.rows].tolist()
    seen = [job for job in wanted if job in ids]
    window = np.array([ids.index(job) for job in seen], dtype=np.intp)
    given = {job["job_id"]: Given(int(job["submit"]), lent_by(job), 1, ()) for job in queue if lent_by(job)}
    book = Book(time=NOW, given=given, offers=unwanted(queue, promised))
    seconds = np.array([queue[job - 1]["seconds"] for job in seen])
    # Of one user's jobs that ask for the same, Slurm's order stands: the scores are in that order already.
    found = raise_jobs(
        managed, window, -np.arange(len(seen), dtype=np.float64), seconds, book, LendSection(share=share, most=most)
    )
    target = dict(zip(ids, found.target.tolist(), strict=True))
    order = [int(table.job_id[managed.scope.rows[one.at]]) for one in found.raises]
    assert set(found.offers) == set(order)
    return seen, [(job, target[job], {part.lender: part.gpus for part in found.offers[job].parts}) for job in order]


def in_turn(seen, reference):
    """The wanted ones that are managed; of one user's jobs that ask for the same, in Slurm's order."""
    jobs = {job.job_id: job for job in reference.jobs}
    order = list(seen)
    for at, one in enumerate(order):
        alike = [nth for nth in range(at, len(order)) if jobs[order[nth]].is_like(jobs[one])]
        ordered = sorted((order[nth] for nth in alike), key=lambda job: (-max(jobs[job].priorities), jobs[job].turn))
        for nth, job in zip(alike, ordered, strict=True):
            order[nth] = job
    return order


@settings(max_examples=500)
@given(st.integers(0, 2**64 - 1))
def test_the_rule_is_the_one_that_is_written_down(seed):
    case = a_queue(seed)
    seen, found = by_rltuned(*case)
    reference = by_reference(*case)
    reference = replace(reference, wanted=in_turn(seen, reference))
    expected = [(one.job.job_id, one.priority, one.lenders) for one in reference.decide()]
    assert [(job, priority) for job, priority, _ in found] == [(job, priority) for job, priority, _ in expected]
    for (_, _, lenders), (_, _, right) in zip(found, expected, strict=True):
        assert lenders == pytest.approx(right)
