"""docs/simulator.md in plain Python: slow, and written to be read beside that page.

It is the executable specification of `kernel`: tests compare the two job by job. Nothing is kept that could be looked
up; every pass sorts the queue, every question about the future replays the running jobs' limits.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np

from rltuned.core.changes import OverSubscribe
from rltuned.core.tables import Rows, concatenate_nodes
from rltuned.decide.rank.protocol import QueueView
from rltuned.simulate.engine import Predictor
from rltuned.simulate.requests import CPU, GPU, MEM, TMP, Requests, requests
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import Backfill, Estimates, Fit, JobFate, SimulationResult, SimulationSettings
from rltuned.simulate.workload.jobs import Workload

_UNRANKED: Final = math.inf

MINUTE: Final = 60.0

GROUP: Final = 30.0
"""Seconds: sched/backfill takes running jobs away in groups. A group spans this time, or 2, 4, 8 … times as much."""

Plans = dict[int, list[tuple[float, float]]]
"""Begin and end of what is planned on each node."""


@dataclass(eq=False)
class Job:
    """A request, and what has become of it."""

    row: int
    submit: float
    run: float
    limit: float
    per_node: bool
    nodes: int  # At least
    most_nodes: int
    need: list[int]
    """GPUs, CPUs, MiB of memory (per node or in all), MiB of disk (per node)."""
    pool: list[int]
    partition: int
    tier: int
    alone: bool
    """Starts on idle nodes only, and nobody joins (OverSubscribe=NO)."""
    whole: bool  # Gets whole nodes, and is alone on them (EXCLUSIVE)
    faster: list[float]
    """Factor on the run time on 1, 2 … nodes, on more as on the last."""
    key: float = _UNRANKED
    fate: JobFate = JobFate.WAITING
    start: float = math.nan
    end: float = math.nan
    holds: dict[int, list[int]] = field(default_factory=dict)  # What it has of each of its nodes
    got: list[int] = field(default_factory=list)  # Its nodes, also after its end
    backfilled: bool = False

    @property
    def unit(self) -> int:
        """What the job is counted in."""
        return GPU if self.need[GPU] else CPU

    @property
    def ends_by(self) -> float:
        """When its limit ends it."""
        return self.start + self.limit


@dataclass
class Room:
    """What the nodes have free at some moment, real or expected."""

    free: list[list[int]]
    jobs: list[set[int]]  # Rows of the jobs on each node
    closed: list[bool]  # A job that is alone is on the node

    def copy(self) -> "Room":
        return Room([list(free) for free in self.free], [set(jobs) for jobs in self.jobs], list(self.closed))

    def take(self, job: Job, given: Mapping[int, list[int]]) -> None:
        for node, amounts in given.items():
            self.jobs[node].add(job.row)
            self.closed[node] = job.alone
            self.free[node] = [free - amount for free, amount in zip(self.free[node], amounts, strict=True)]

    def give_back(self, job: Job) -> None:
        for node, amounts in job.holds.items():
            self.jobs[node].remove(job.row)
            self.closed[node] = False
            self.free[node] = [free + amount for free, amount in zip(self.free[node], amounts, strict=True)]

    def admits(self, job: Job, node: int) -> bool:
        """Whether the node takes the job, whatever is free on it."""
        return not self.closed[node] and not (job.alone and self.jobs[node])


@dataclass
class Promise:
    """What EASY reservations need of a node, from the earliest of them on."""

    since: float
    amounts: list[int]
    left: list[int]  # What a job that is still there at `since` can have
    alone: bool


def next_multiple(time: float, step: float) -> float:
    """The first multiple of `step` that is not before `time`; `time` itself when the step is 0."""
    if step <= 0 or time == math.inf:
        return time
    k = math.floor(time / step) - 1  # the quotient may be rounded either way
    while k * step < time:
        k += 1
    return k * step


def whole_steps(time: float, step: float) -> float:
    """`time` rounded down to a multiple of `step`; as it is when the step is 0 or it is infinite."""
    return math.floor(time / step) * step if step > 0 and time < math.inf else time


def reserved(start: float, end: float, step: float) -> tuple[float, float]:
    """The whole steps that a plan takes, one at least; as it is when the step is 0."""
    begin = whole_steps(start, step)
    return begin, max(next_multiple(end, step), begin + step)


def share(total: int, part: int, whole: int) -> int:
    """What `part` of `whole` units carry of a total, rounded up."""
    return -(-total * part // whole)


def from_runs(nodes: list[int], cpus: Mapping[int, int], count: int, weight: Sequence[int], needed: int) -> list[int]:
    """select/cons_tres: `count` of these nodes, sorted, by runs of neighbours of one weight and their free CPUs.

    A run is large enough if it has what is left of the `needed` nodes; of a range, these are fewer.
    """
    runs: list[list[int]] = []
    for node in nodes:
        if runs and runs[-1][-1] == node - 1 and weight[node - 1] == weight[node]:
            runs[-1].append(node)
        else:
            runs.append([node])
    chosen: list[int] = []
    while runs and len(chosen) < count:
        left = count - len(chosen)
        least = min(weight[run[0]] for run in runs)
        lightest = [run for run in runs if weight[run[0]] == least]
        if enough := [run for run in lightest if len(run) >= needed - len(chosen)]:
            run = min(enough, key=lambda run: sum(cpus[node] for node in run))
        else:
            run = max(lightest, key=lambda run: sum(cpus[node] for node in run))
        chosen += [min(run, key=cpus.__getitem__)] if count == 1 else run[:left]
        runs.remove(run)
    return chosen


class Reference:
    """One simulation."""

    def __init__(
        self,
        shape: ClusterShape,
        jobs: Workload,
        estimates: Estimates,
        ranker: Any,
        settings: SimulationSettings | None = None,
        isolated: Iterable[int] = (),
        predictor: Predictor | None = None,
        asked: Requests | None = None,
    ) -> None:
        """`isolated`: rows with OverSubscribe=NO; `ranker`: a `RuleRanker`, say. The rest as for `engine.simulate`."""
        self.shape, self.jobs, self.estimates, self.ranker = shape, jobs, estimates, ranker
        self.settings = settings or SimulationSettings()
        self.predictor = predictor
        self.asked = asked = asked or requests(shape, jobs, estimates.time_limit)
        self.now = 0.0
        apart = frozenset(isolated)
        self.every = []
        for row in range(len(jobs)):
            partition = shape.partitions[max(int(asked.partition[row]), 0)]
            whole = partition.oversubscribe is OverSubscribe.EXCLUSIVE
            self.every.append(
                Job(
                    row,
                    float(jobs.submit_time[row]),
                    float(jobs.run_time[row]),
                    float(estimates.time_limit[row]),
                    bool(asked.per_node[row]),
                    int(asked.nodes[row]),
                    int(asked.most_nodes[row]),
                    [int(column[row]) for column in (asked.gpus, asked.cpus, asked.mem, asked.tmp)],
                    [int(node) for node in np.flatnonzero(asked.pool_nodes[asked.pool[row]])]
                    if row not in asked.rejected
                    else [],
                    max(int(asked.partition[row]), 0),
                    partition.priority_tier,
                    alone=whole or row in apart,
                    whole=whole,
                    faster=self.factors(row),
                    fate=JobFate.REJECTED if row in asked.rejected else JobFate.WAITING,
                )
            )
        self.partition_nodes = [[int(node) for node in partition.nodes] for partition in shape.partitions]
        nodes = len(shape.nodes)
        self.full = [[int(amount) for amount in row] for row in asked.capacity]
        self.usable = [bool(usable) for usable in shape.nodes.usable]
        self.weight = [1] * nodes if shape.nodes.weight is None else shape.nodes.weight.tolist()
        self.room = Room([list(row) for row in self.full], [set() for _ in range(nodes)], [False] * nodes)
        self.to_come = [job for job in self.every if job.fate is JobFate.WAITING]
        self.queue: list[Job] = []
        self.running: list[Job] = []
        self.news: list[Job] = []
        """Ended since the predictor was last called."""
        self.unseen = False
        """Something was submitted or has ended since the last refresh."""
        self.changed = self.changed_main = math.inf
        """When the first change came (submission, end, other order) that no backfill (main) pass has seen."""
        self.untried = math.inf
        """When a main pass last left jobs untried."""
        self.last_refresh = -math.inf
        self.passes = self.refreshes = 0

    def factors(self, row: int) -> list[float]:
        """Of the run time on 1, 2 … nodes, over that on the least nodes."""
        if self.jobs.curve[row] < 0:
            return [1.0]
        curve = self.jobs.scaling[self.jobs.curve[row]]
        fewest = min(int(self.asked.nodes[row]), len(curve)) - 1
        return [float(factor / curve[fewest]) for factor in curve]

    # --- time

    def run(self) -> SimulationResult:
        """From the first submission until nothing can happen any more."""
        while (now := self.next_event()) < math.inf:
            self.now = now
            news = self.ends() | self.submissions()
            self.unseen |= news
            if self.queue and self.refresh_due() <= now:
                news |= self.refresh()
            if news:
                self.changed, self.changed_main = min(self.changed, now), min(self.changed_main, now)
            if self.main_due() <= now:
                self.changed_main = self.untried = math.inf
                if self.queue:
                    self.main_pass()
            if self.backfill_due() <= now:
                self.changed = math.inf
                if self.queue:
                    self.backfill_pass()
            if not self.queue:  # what comes next is looked at in its own time
                self.changed = self.changed_main = self.untried = math.inf
        return self.result()

    def next_event(self) -> float:
        times = [self.free_at(job) for job in self.running] + [job.submit for job in self.to_come[:1]]
        if self.queue:
            times += [self.refresh_due(), self.main_due(), self.backfill_due()]
        return max(min(times, default=math.inf), self.now)

    def free_at(self, job: Job) -> float:
        return job.end + self.settings.turnover

    def killed_at(self, job: Job) -> float:
        """When slurmctld ends a job that does not end by itself."""
        return next_multiple(job.ends_by, self.settings.kill_interval)

    def refresh_due(self) -> float:
        """When the policy next ranks a queue that is not empty."""
        if self.unseen:
            at_once = self.ranker.at_once and any(job.key == _UNRANKED for job in self.queue)
            return self.now if at_once else next_multiple(self.now, self.settings.refresh)
        if self.ranker.ages and (self.running or self.to_come):
            return next_multiple(max(self.last_refresh + self.settings.stale, self.now), self.settings.refresh)
        return math.inf

    def main_due(self) -> float:
        """When the main scheduler next looks at the queue."""
        return min(next_multiple(self.changed_main, self.settings.sched_interval), next_multiple(self.untried, MINUTE))

    def backfill_due(self) -> float:
        """When the backfill scheduler does, on a clock of its own."""
        offset = self.settings.bf_offset
        return next_multiple(self.changed - offset, self.settings.bf_interval) + offset

    def ends(self) -> bool:
        """Jobs whose time is over leave; whether there were any."""
        over = sorted(
            (job for job in self.running if self.free_at(job) <= self.now), key=lambda job: (job.end, job.row)
        )
        for job in over:
            self.room.give_back(job)
            self.running.remove(job)
            self.news.append(job)
            killed = job.start + self.settings.launch + job.run > self.killed_at(job)
            job.fate = JobFate.TIMEOUT if killed else JobFate.COMPLETED
        return bool(over)

    def submissions(self) -> bool:
        """Jobs whose time has come join the queue; whether there were any."""
        came = False
        while self.to_come and self.to_come[0].submit <= self.now:
            self.queue.append(self.to_come.pop(0))
            came = True
        self.sort()
        return came

    # --- ranking

    def sort(self) -> None:
        """Tier, then rank, then submission: a job that nobody has ranked is behind the ranked ones of its tier."""
        self.queue.sort(key=lambda job: (-job.tier, job.key, job.row))

    def refresh(self) -> bool:
        """The policy ranks the queue; whether the order changed."""
        self.refreshes += 1
        self.unseen, self.last_refresh = False, self.now
        before = list(self.queue)
        rows = np.array([job.row for job in self.queue], dtype=np.intp)
        if self.predictor is not None:
            self.predict(self.predictor)
        for job, key in zip(before, self.ranker.keys(self, rows), strict=True):
            job.key = float(key)
        self.sort()
        return self.queue != before

    def predict(self, predictor: Predictor) -> None:
        """Tell the predictor which jobs have ended, and let it estimate all anew; if none has, those that are new."""
        rows = [job.row for job in self.queue if self.news or job.key == _UNRANKED]
        if self.news:
            self.news.sort(key=lambda job: (job.end, job.row))
            ended = np.array([job.row for job in self.news], dtype=np.intp)
            predictor.ended(
                ended, np.array([job.end - job.start for job in self.news]), np.array([job.end for job in self.news])
            )
            self.news = []
        fresh = np.array(sorted(rows), dtype=np.intp)
        if len(fresh):
            expected = predictor.predict(fresh).expected
            known = ~np.isnan(expected)
            limit = self.estimates.time_limit[fresh[known]]
            self.estimates.run_time[fresh[known]] = np.clip(expected[known], 1.0, limit)

    def view(self, rows: Rows) -> QueueView:
        """These jobs as a plain rule sees them."""
        submit = self.jobs.submit_time[rows]
        return QueueView(
            run_time=self.estimates.run_time[rows],
            time_limit=self.estimates.time_limit[rows],
            gpus=np.array([self.taken(self.every[row]) for row in rows], dtype=np.float64),
            wait=np.maximum(self.now - submit, 0.0),
            submit=submit - (self.jobs.submit_time[0] if len(self.jobs) else 0.0),
            priority=-rows.astype(np.float64),
        )

    def taken(self, job: Job) -> float:
        """GPUs that the job asks for, or, of whole nodes, as many as nodes like the median one of its pool have."""
        asked = float(self.jobs.gpus[job.row])
        if not job.whole or not job.pool:
            return asked
        # Policies know of no floating reservation, and take any node with as many GPUs as it wants of one.
        asked_of = self.asked
        kind, wanted = int(asked_of.gpu_type[job.row]), int(asked_of.gpus[job.row])
        wanted = wanted if asked_of.per_node[job.row] else min(wanted, 1)
        there = self.shape.nodes.gpus.sum(axis=1) if kind < 0 else self.shape.nodes.gpus[:, kind]
        nodes = self.shape.partitions[job.partition].nodes
        each = median(self.full[node][GPU] for node in nodes if there[node] >= wanted)
        return max(asked, max(job.nodes, math.ceil(asked / max(each, 1))) * each)

    # --- starting jobs

    def main_pass(self) -> None:
        """Jobs start in order; the first of a partition that does not fit blocks the partition and keeps its nodes."""
        self.passes += 1
        blocked: set[int] = set()
        kept: set[int] = set()
        whole = self.settings.sched_interval > 0.0 or self.now % MINUTE == 0.0
        for place, job in enumerate(list(self.queue)):
            if job.partition in blocked:
                continue
            if not whole and place > self.settings.default_queue_depth:
                self.untried = self.now
                break
            nodes = [node for node in job.pool if node not in kept and self.usable[node]]
            given = self.choose(job, self.room, nodes)
            if given is not None:
                self.begin(job, given, backfilled=False)
            elif not self.is_young(job):
                blocked.add(job.partition)
                kept.update(self.partition_nodes[job.partition])

    def is_young(self, job: Job) -> bool:
        """Whether it has not waited for long enough to keep anything from others."""
        return self.now - float(self.jobs.submit_time[job.row]) < self.settings.bf_min_age_reserve

    def backfill_pass(self) -> None:
        """Later jobs start before the blocked ones, as far as that does not delay reservations."""
        if self.settings.backfill is Backfill.EASY:
            self.passes += 1
            self.easy()
        elif self.settings.backfill is Backfill.SLURM:
            self.passes += 1
            self.slurm()

    def begin(self, job: Job, given: dict[int, list[int]], *, backfilled: bool) -> None:
        self.room.take(job, given)
        job.holds, job.got = given, list(given)
        job.fate, job.start, job.backfilled = JobFate.RUNNING, self.now, backfilled
        if self.jobs.curve[job.row] >= 0:
            job.run = float(self.jobs.run_time[job.row]) * job.faster[min(len(given), len(job.faster)) - 1]
        job.end = min(self.now + self.settings.launch + job.run, self.killed_at(job))
        self.queue.remove(job)
        self.running.append(job)

    # --- which nodes

    def choose(
        self,
        job: Job,
        room: Room,
        nodes: Iterable[int],
        caps: Mapping[int, list[int]] | None = None,
    ) -> dict[int, list[int]] | None:
        """What the job gets of which nodes; None when it does not fit.

        `caps`: on these nodes it may not have more than so much, even where more is free.
        """
        offers: dict[int, list[int]] = {}
        free: dict[int, int] = {}
        for node in nodes:
            if room.admits(job, node):
                cap = caps.get(node) if caps else None
                offers[node] = (
                    [min(pair) for pair in zip(room.free[node], cap, strict=True)] if cap else room.free[node]
                )
                free[node] = room.free[node][job.unit]
        cpus = {node: max(room.free[node][CPU], 0) for node in offers}
        given = self.on_each(job, offers, free, cpus) if job.per_node else self.in_all(job, offers, free, cpus)
        if given is None or len(given) > job.most_nodes:
            return None
        return {node: list(self.full[node]) if job.whole else amounts for node, amounts in given.items()}

    def preferred(
        self, nodes: list[int], free: Mapping[int, int], cpus: Mapping[int, int], count: int, needed: int
    ) -> list[int]:
        """`count` of these nodes (or all that there are), by the rule of fit and what is free; ties in their order."""
        if self.settings.fit is Fit.SLURM:
            return from_runs(sorted(nodes), cpus, min(count, len(nodes)), self.weight, needed)
        sign = 1 if self.settings.fit is Fit.BEST else -1
        return sorted(nodes, key=lambda node: (sign * free[node], node))[:count]

    def on_each(
        self, job: Job, offers: Mapping[int, list[int]], free: Mapping[int, int], cpus: Mapping[int, int]
    ) -> dict[int, list[int]] | None:
        """The same on each of as many nodes as have it, `nodes` to `most_nodes`."""
        able = [
            node
            for node, offer in offers.items()
            if all(have >= need for have, need in zip(offer, job.need, strict=True))
        ]
        chosen = self.preferred(able, free, cpus, job.most_nodes, job.nodes)
        return {node: list(job.need) for node in chosen} if len(chosen) >= job.nodes else None

    def in_all(
        self, job: Job, offers: Mapping[int, list[int]], free: Mapping[int, int], cpus: Mapping[int, int]
    ) -> dict[int, list[int]] | None:
        """So many units on as few nodes as possible: the nodes that give most, and what is left by the rule of fit.

        At least `nodes` nodes give one unit each.
        """
        total = job.need[job.unit]
        gives = {node: units for node, offer in offers.items() if (units := self.units(job, offer)) > 0}
        given: dict[int, list[int]] = {}
        left = total
        while left > 0:
            want = left - max(job.nodes - len(given) - 1, 0)  # a unit each for the nodes that must follow
            enough = [node for node, units in gives.items() if units >= want]
            if self.settings.fit is Fit.SLURM and (given or job.nodes > 1):
                enough = []  # it looks for one node that has all, and else takes the largest, the last one too
            if enough:
                node = self.preferred(enough, free, cpus, 1, 1)[0]
            elif gives:
                node = min(gives, key=lambda node: (-gives[node], node))
            else:
                return None
            part = min(gives.pop(node), want)
            given[node] = [*(share(job.need[d], part, total) for d in (GPU, CPU, MEM)), job.need[TMP]]
            left -= part
        return given if len(given) >= job.nodes else None

    @staticmethod
    def units(job: Job, offer: list[int]) -> int:
        """The most units that a node can give with their share of CPUs and memory."""
        total = job.need[job.unit]
        if offer[TMP] < job.need[TMP]:
            return 0
        units = min(total, offer[job.unit])
        while units > 0 and any(share(job.need[d], units, total) > offer[d] for d in (CPU, MEM)):
            units -= 1
        return max(units, 0)

    # --- backfill

    def releases(self) -> list[Job]:
        """Running jobs in the order in which their limits end them, those without a limit left out."""
        return sorted((job for job in self.running if job.ends_by < math.inf), key=lambda job: job.ends_by)

    def easy(self) -> None:
        """One reservation for each partition: for its first job that cannot start."""
        promised: dict[int, Promise] = {}
        blocked: set[int] = set()
        for job in list(self.queue):
            until = self.now + job.limit
            touched = {node for node in job.pool if node in promised and until > promised[node].since}
            nodes = [node for node in job.pool if self.usable[node] and not (job.alone and node in touched)]
            given = self.choose(job, self.room, nodes, {node: promised[node].left for node in touched})
            if given is not None:
                for node, amounts in given.items():
                    if node in touched:
                        promised[node].left = [a - b for a, b in zip(promised[node].left, amounts, strict=True)]
                self.begin(job, given, backfilled=job.partition in blocked)
            elif job.partition not in blocked:
                blocked.add(job.partition)
                self.reserve(job, promised)

    def reserve(self, job: Job, promised: dict[int, Promise]) -> None:
        """The earliest end of a running job's limit at which this job fits, beside what is promised to others."""
        then = self.room.copy()
        for node, promise in promised.items():
            then.free[node] = [a - b for a, b in zip(then.free[node], promise.amounts, strict=True)]
        nodes = [
            node
            for node in job.pool
            if self.usable[node] and not (node in promised and (job.alone or promised[node].alone))
        ]
        releases = self.releases()
        for time in sorted({other.ends_by for other in releases}):
            for other in releases:
                if other.ends_by == time:
                    then.give_back(other)
            given = self.choose(job, then, nodes)
            if given is None:
                continue
            for node, amounts in given.items():
                left = [a - b for a, b in zip(then.free[node], amounts, strict=True)]
                if node in promised:
                    old = promised[node]
                    left = [min(a, b - c) for a, b, c in zip(left, old.left, amounts, strict=True)]
                    amounts = [a + b for a, b in zip(old.amounts, amounts, strict=True)]  # noqa: PLW2901 - the sum
                    promised[node] = Promise(min(time, old.since), amounts, left, alone=False)
                else:
                    nothing = [0] * len(amounts)
                    promised[node] = Promise(time, amounts, nothing if job.alone else left, alone=job.alone)
            return

    def slurm(self) -> None:
        """Each job that cannot start plans whole nodes, from its expected start until its limit."""
        plans: Plans = {node: [] for node in range(len(self.usable))}
        blocked: set[int] = set()
        second = float(math.floor(self.now))
        if self.end_of_plans(second) < second:
            return
        looked: Counter[tuple[str, int]] = Counter()
        reserved: Counter[int] = Counter()
        most = {"user": self.settings.bf_max_job_user, "partition": self.settings.bf_max_job_part}
        for job in list(self.queue):
            if looked["tested", 0] == self.settings.bf_max_job_test:
                break
            if 0 < self.settings.bf_max_job_start == looked["started", 0]:
                break
            mine = {"user": int(self.jobs.user.codes[job.row]), "partition": job.partition}
            if any(0 < limit <= looked[of, mine[of]] for of, limit in most.items()):
                blocked.add(job.partition)
                continue
            looked.update([*mine.items(), ("tested", 0)])
            given = self.choose(job, self.room, self.able(job, self.unplanned(job, second, plans)))
            if given is not None:
                self.begin(job, given, backfilled=job.partition in blocked)
                looked["started", 0] += 1
            else:
                blocked.add(job.partition)
                full = 0 < self.settings.bf_job_part_count_reserve <= reserved[job.partition]
                if not self.is_young(job) and not full:
                    reserved[job.partition] += self.plan(job, second, plans)

    def end_of_plans(self, second: float) -> float:
        """Where the table of this pass ends: nothing is tried after it, and what would begin there is not kept."""
        return whole_steps(second + self.settings.bf_window, self.settings.bf_resolution)

    def plan(self, job: Job, second: float, plans: Plans) -> bool:
        """Reserve the whole nodes on which the job is expected to start first; whether that is within `bf_window`."""
        latest = second + self.settings.bf_window
        since, listed = second, self.releases()
        found: dict[tuple[int, ...], tuple[float, list[int]] | None] = {}  # nothing begins or ends meanwhile
        while since <= self.end_of_plans(second) and since < math.inf:
            nodes = self.unplanned(job, since, plans)
            # When more nodes become usable.
            until = since + job.limit
            usable = [node for node in self.partition_nodes[job.partition] if self.usable[node]]
            ends = [end for node in usable for begin, end in plans[node] if begin <= until and end > since]
            later = min(ends, default=math.inf)
            if tuple(nodes) not in found:
                found[tuple(nodes)] = self.expected(job, nodes, second, listed)
            expected = found[tuple(nodes)]
            if expected is None or later < max(expected[0], since):
                since = later
                continue
            start, chosen = max(expected[0], since), expected[1]
            if start > latest:
                return False
            if set(chosen) <= set(self.unplanned(job, start, plans)):
                step = self.settings.bf_resolution
                begin, end = reserved(start, start + job.limit, step)
                if begin < self.end_of_plans(second):
                    for node in chosen:
                        plans[node].append((begin, end))
                return True
            since = start
        return False

    def unplanned(self, job: Job, since: float, plans: Plans) -> list[int]:
        """Nodes of its partition without a plan from `since` until the job's limit, that moment included."""
        until = since + job.limit
        return [
            node
            for node in self.partition_nodes[job.partition]
            if self.usable[node] and not any(begin <= until and end > since for begin, end in plans[node])
        ]

    @staticmethod
    def able(job: Job, nodes: list[int]) -> list[int]:
        pool = set(job.pool)
        return [node for node in nodes if node in pool]

    def expected(self, job: Job, nodes: list[int], second: float, listed: list[Job]) -> tuple[float, list[int]] | None:
        """When the job fits on these nodes if running jobs go on to their limits, and where; None: never.

        `listed`: `releases`.

        Running jobs are taken away in groups, and the job is expected to start when the last of a group has ended.
        """
        able = self.able(job, nodes)
        if (given := self.choose(job, self.room, able)) is not None:
            return second, list(given)
        then, mine = self.room.copy(), set(nodes)
        ends = [float(math.floor(other.ends_by)) for other in listed]
        first: float | None = None
        window = GROUP
        at = 0
        while at < len(listed):
            last = None
            while at < len(listed):
                other, end = listed[at], ends[at]
                at += 1
                if not mine & set(other.holds):
                    continue
                then.give_back(other)
                last = end
                if first is None:
                    first = (math.floor(end / GROUP) + 1) * GROUP
                if at < len(listed) and ends[at] > first + window:
                    break
            if last is None or first is None:
                return None
            if (given := self.choose(job, then, able)) is not None:
                return last, list(given)
            while at < len(listed):
                window *= 2
                if ends[at] <= first + window:
                    break
        return None

    def result(self) -> SimulationResult:
        ptr, nodes = concatenate_nodes([job.got for job in self.every])
        over = {JobFate.COMPLETED, JobFate.TIMEOUT}
        return SimulationResult(
            fate=np.array([job.fate for job in self.every], dtype=np.int8),
            start=np.array([job.start for job in self.every], dtype=np.float64),
            end=np.array([job.end if job.fate in over else math.nan for job in self.every], dtype=np.float64),
            rejected=dict(self.asked.rejected),
            node_ptr=ptr,
            node_idx=nodes,
            backfilled=np.array([job.backfilled for job in self.every], dtype=np.bool_),
            passes=self.passes,
            refreshes=self.refreshes,
        )


def reference(*arguments: Any) -> SimulationResult:
    """As `simulate`, in plain Python; the arguments are those of `Reference`."""
    return Reference(*arguments).run()
