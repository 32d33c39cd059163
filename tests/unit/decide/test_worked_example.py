"""Every number of docs/lending-example.md is computed here, and found on the page; no other number is there."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from rltuned.cli import show
from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Applied, JobState, OverSubscribe
from rltuned.core.config import Config
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.tables import Partition, Snapshot
from rltuned.decide.decision import record
from rltuned.decide.expect.predictions import RunTimePredictions, RunTimes
from rltuned.decide.explain import explain
from rltuned.decide.loans import Book, Told
from rltuned.decide.plan import Plan, plan
from rltuned.decide.raising import OF_LIMIT, Stop, charged_seconds
from rltuned.decide.rank.heuristics import by_name
from rltuned.slurm.writer import update_word

ROOT = Path(__file__).resolve().parents[3]
MINUTE, HOUR = 60.0, 3600.0
NOON = datetime(2027, 1, 11, 12).astimezone()
NODES, GPUS = 4, 8


class Job(NamedTuple):
    user: str
    nodes: int
    gpus: int  # on each node
    limit: float
    predicted: float
    waited: float  # at noon
    priority: int


JOBS = {
    101: Job("ann", 1, 8, 48 * HOUR, 20 * HOUR, 10 * HOUR, 9000),
    102: Job("bob", 2, 8, 24 * HOUR, 10 * HOUR, 20 * HOUR, 8000),
    103: Job("ann", 1, 1, 4 * HOUR, 2 * HOUR, 2 * HOUR, 7000),
    104: Job("cat", 1, 1, HOUR, 20 * MINUTE, HOUR, 6000),
    105: Job("bob", 1, 4, 8 * HOUR, 3 * HOUR, 5 * HOUR, 5000),
    106: Job("cat", 1, 2, 12 * HOUR, 30 * MINUTE, 10 * MINUTE, 4000),
}
STARTED = 5  # minutes after noon
RAN = {104: 30, 106: 12}
"""Minutes, of those that start then and end within the hour; 103 starts, too."""


def reading(minute, ours):
    """What Slurm says at that minute of the jobs, which carry our site factors."""
    now = NOON.timestamp() + minute * MINUTE
    ids = [job for job in JOBS if job not in RAN or minute < STARTED + RAN[job]]
    jobs = [JOBS[job] for job in ids]
    runs = np.array([minute >= STARTED and job in {103, *RAN} for job in ids])
    gpus = np.array([job.nodes * job.gpus for job in jobs])
    factor = np.array([ours.get(job, 0) for job in ids])
    submitted = [NOON.timestamp() - job.waited for job in jobs]
    table = job_table(
        len(ids),
        job_id=ids,
        user=[job.user for job in jobs],
        account=[job.user for job in jobs],
        nodes=[job.nodes for job in jobs],
        gpus=gpus,
        cpus=8 * gpus,
        mem=64_000.0 * gpus,
        time_limit=[job.limit for job in jobs],
        submit_time=submitted,
        eligible_time=submitted,
        priority=np.array([job.priority for job in jobs]) + factor,
        site_factor=factor,
        state=np.where(runs, int(JobState.RUNNING), int(JobState.PENDING)),
        start_time=np.where(runs, NOON.timestamp() + STARTED * MINUTE, np.nan),
    )
    nodes = node_table(
        [f"n{number}" for number in range(NODES)], ["a100"], GPUS, gpus_alloc=GPUS, cpus_alloc=64, mem=8 * 64_000.0
    )
    everywhere = np.arange(NODES, dtype=np.int32)
    partition = Partition("gpu", everywhere, True, 1, OverSubscribe.NO, 1, 7 * 86_400.0, default=True)
    return Snapshot(now, (24, 11), table, nodes, (partition,))


def told(minute):
    def took(job):
        ended = job in RAN and minute >= STARTED + RAN[job]
        return (NOON.timestamp() + STARTED * MINUTE, RAN[job] * MINUTE) if ended else None

    return Told(took)


class Cycle(NamedTuple):
    made: Plan
    lent: dict[int, float]  # GPU-seconds by id of the waiting jobs
    lendable: dict[int, float]


def an_hour():
    """A cycle each minute, as the daemon makes them: every change is written."""
    book, ours, cycles = Book(), dict[int, int](), []
    for minute in range(61):
        snapshot = reading(minute, ours)
        waiting = snapshot.jobs.job_id[snapshot.jobs.pending].tolist()
        book = book.advanced(snapshot, snapshot.time, told(minute))
        carried = AppliedChanges(
            {
                job: Applied(job, int(NOON.timestamp() - JOBS[job].waited), factor)
                for job, factor in ours.items()
                if job in waiting
            }
        )
        median = np.array([JOBS[job].predicted for job in snapshot.jobs.job_id.tolist()])
        runs = RunTimePredictions(median, median, median / 2, median * 2)
        made = plan(snapshot, by_name("saf"), Config(), carried, RunTimes(median, runs), book)
        ours |= {change.job_id: int(change.after) for change in made.changes}
        book = made.book.offering({**book.offers, **made.book.offers}).carried({*ours} & {*waiting})
        lent, lendable = (
            dict(zip(waiting, each.tolist(), strict=True)) for each in (made.raised.lent, made.raised.lendable)
        )
        cycles.append(Cycle(made, lent, lendable))
    return cycles


def clock(minute):
    return f"{NOON + timedelta(minutes=minute):%H:%M}"


def time(seconds):
    minutes = round(seconds / MINUTE)
    return f"{minutes} min" if minutes % 60 else f"{minutes // 60} h"


def hours(gpu_seconds):
    return f"{gpu_seconds / HOUR:.2f}"


def gpus_of(count):
    return f"{count:g} GPU{'s' if count > 1 else ''}"


def row(*cells):
    return " ".join(f"| {' | '.join(map(str, cells))} |".split())


def squeue():
    for job, (user, nodes, gpus, limit, _, waited, priority) in JOBS.items():
        days, rest = divmod(round(limit), 86_400)
        shown = f"{f'{days}-' if days else ''}{rest // 3600:{'02' if days else ''}}:00:00"
        yield f"{job} {user} {priority} {nodes} gres:gpu:{gpus} {shown} {NOON - timedelta(seconds=waited):%Y-%m-%dT%T}"


def wanted(made):
    """Ids in the order of the policy's scores; of equal ones, Slurm's order."""
    ids, rank = made.snapshot.jobs.job_id[made.rows].tolist(), made.base_rank.tolist()
    scores = {ids[at]: score for at, score in zip(made.window.tolist(), made.scores.tolist(), strict=True)}
    return sorted(scores, key=lambda job: (-scores[job], rank[ids.index(job)]))


def of_the_decision(cycle):
    """What the page says of noon."""
    made = cycle.made
    ids, found = made.snapshot.jobs.job_id[made.scope.rows].tolist(), made.raised
    at = {job: ids.index(job) for job in ids}
    yield f"{NODES} nodes with {GPUS} GPUs each"
    yield f"`lend.share` is {made.config.lend.share}"
    yield f"It is {clock(0)}."
    yield '"%.5i %.4u %.8Q %.5D %.13b %.10l %.19V"'
    yield from squeue()
    assert made.rows.tolist() == list(range(len(JOBS)))  # all are managed
    yield "## 1. Who"
    yield "## 2. What each"
    for job, asks in JOBS.items():
        yield row(job, asks.user, f"{made.managed.size[at[job]]:g}", time(asks.waited), hours(cycle.lendable[job]))
    yield "## 3. Whom"
    floored = []
    for job in wanted(made):
        limit, median = JOBS[job].limit, JOBS[job].predicted
        (charged,) = charged_seconds(np.array([median]), np.array([limit])).tolist()
        floored += [job] * (charged > median)
        used = hours(charged * made.managed.size[at[job]])
        yield row(job, time(median), time(OF_LIMIT * limit), time(charged), used)
    yield f"where that is longer, as for {', '.join(map(str, floored))}."
    yield "## 4. Who"
    left = dict(cycle.lendable)
    before, after = (dict(zip(ids, ranks.tolist(), strict=True)) for ranks in (made.base_rank, made.rank))
    for one in found.raises:
        job, seconds = ids[one.at], found.offers[ids[one.at]].seconds
        lends: tuple[object, ...] = ("nobody", "", "", "")
        for lender, gpus in one.lenders:
            left[ids[lender]] -= gpus * seconds
            lent = hours(gpus * seconds)
            lends = (f"{ids[lender]}, {gpus_of(gpus)}", time(seconds), lent, hours(left[ids[lender]]))
        assert len(one.lenders) <= 1
        passed = [other for other in ids if before[other] < before[job] and after[other] > after[job]]
        assert passed[0] == ids[one.first]
        yield row(job, JOBS[job].user, ", ".join(map(str, passed)), *lends)
    stops = {job: (Stop(found.stop[at[job]]), int(found.stopped_by[at[job]])) for job in ids}
    assert JOBS[101].user == JOBS[103].user
    yield f"- 101 is {JOBS[101].user}'s, as 103 is: to pass it is free, and 102 lends."
    assert JOBS[102].user == JOBS[105].user == "bob"
    assert stops[105] == stops[102] == (Stop.LENT, 101)
    needs, charged = JOBS[105].gpus, JOBS[105].predicted
    assert left[101] < needs * charged
    yield (
        f"105 stays behind 101: that can lend {hours(left[101])}, and would have to lend {gpus_of(needs)} for "
        f"{time(charged)}, {hours(needs * charged)}. To pass 102 is free"
    )
    assert stops[101] == (Stop.FRONT, 0)
    yield "- 101 has nobody before it"
    needs, charged = JOBS[101].gpus, JOBS[102].predicted
    yield (f"102 stays behind 101, which cannot lend {gpus_of(needs)} for {time(charged)}, {hours(needs * charged)}.")


def of_what_is_written(cycle):
    made = cycle.made
    yield "## 5. What"
    ids = made.snapshot.jobs.job_id[made.rows].tolist()
    for change in made.changes:
        at, job = ids.index(change.job_id), change.job_id
        line = f"`update JobId={job} {update_word(change)}`"
        yield row(line, made.base[at], made.target[at], made.base_rank[at] + 1, made.rank[at] + 1)
        assert made.base[at] + int(change.after) == made.target[at]
    assert {101, 102} == {*JOBS} - {change.job_id for change in made.changes}
    yield "101 and 102 keep what Slurm gives them."


def of_the_hour(cycles):
    def lent(minute):
        return [hours(cycles[minute].lent[job]) for job in (101, 102)]

    offers = cycles[0].made.raised.offers
    runs = [job for job in offers if job not in cycles[STARTED].lent]
    assert {*runs} == {103, *RAN}
    named = "104, 106 and 103"
    assert re.findall(r"\d+", named) == list(map(str, runs))
    free = sum(JOBS[job].nodes * JOBS[job].gpus for job in runs)
    yield f"At {clock(STARTED)}, {gpus_of(free)} come free. {named} start"
    yield "| time | | 101 has lent, GPU-hours | 102 has lent |"
    yield row(clock(STARTED), f"{named} are charged", *lent(STARTED))
    for job, minutes in sorted(RAN.items(), key=lambda item: item[1]):
        gpus, ended = JOBS[job].gpus, STARTED + minutes
        said = f"{hours(gpus * minutes * MINUTE)} instead of {hours(gpus * offers[job].seconds)}"
        yield row(clock(ended), f"{job} has ended after {minutes} min: {said}", *lent(ended))
    until = f"it is charged {time(offers[103].seconds)} until it has used more"
    yield row(clock(60), f"103 runs for {60 - STARTED} min; {until}", *lent(60))
    last = cycles[-1]
    yield f"| job at {clock(60)} |"
    for job, given in last.lent.items():
        may = given + last.lendable[job]
        yield row(job, time(JOBS[job].waited + HOUR), *map(hours, (may, given, last.lendable[job])))
    console = Console(width=200)
    with console.capture() as shown:
        show.explanation(console, explain(record(last.made), 101))
    (line,) = re.findall(r"It waits .*", shown.get())
    yield f"$ rltuned explain 101 {line}"
    assert [int(last.made.snapshot.jobs.job_id[last.made.scope.rows[one.at]]) for one in last.made.raised.raises] == [
        105
    ]
    assert last.made.raised.stopped_by[last.made.snapshot.jobs.job_id[last.made.rows].tolist().index(105)] == 101
    yield "105 still goes ahead of 102 only"
    assert not any(cycle.made.changes for cycle in cycles[1:])
    yield f"in the {len(cycles) - 1} cycles since {clock(0)} nothing was written. When 101 starts"


def test_the_worked_example_has_the_numbers_that_plan_and_book_give():
    page = " ".join((ROOT / "docs" / "lending-example.md").read_text().split())
    cycles = an_hour()
    for said in (*of_the_decision(cycles[0]), *of_what_is_written(cycles[0]), *of_the_hour(cycles)):
        assert said in page
        page = page.replace(said, "", 1)
    assert re.findall(r".{0,40}\d.{0,40}", page) == []
