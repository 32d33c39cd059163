"""docs/lending.md in plain Python: who goes ahead, and who lends for it. Slow, to be read beside that page.

It is the executable specification of `rltuned.decide.raising`: tests compare the two. Nothing is kept that could be
looked up, and each job that is wanted tries each place from the front of the queue on: it takes the first one, but
keeps its own where most of those that it could pass would still be before it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ROUNDING = 1e-6
"""GPU-seconds."""


@dataclass(frozen=True)
class Job:
    """A pending job, as the rule sees it."""

    job_id: int
    turn: tuple[float, int]
    """Submission and id: of jobs of one priority the lower turn is first."""
    user: str
    priorities: tuple[int, ...]
    """That Slurm alone gives it, in each of its partitions."""
    tiers: frozenset[int]
    reserved: bool
    nodes: frozenset[int]
    """Where it can run."""
    size: float
    """GPUs that it keeps from others, with all of its tasks that may start."""
    asks: tuple[float | str, ...]
    """What it asks for."""
    least_decided: int
    most_decided: int
    can_start: bool
    in_scope: bool
    """Whether it may be passed at all."""
    lendable: float
    """GPU-seconds that it can lend still, below 0 where borrowers used more than was expected."""
    lent: float
    current: int
    """Priority that it has now, the highest of its partitions'."""

    @property
    def is_raised(self) -> bool:
        """Whether it goes ahead already."""
        return self.current > max(self.priorities)

    @property
    def exhausted(self) -> bool:
        """Whether it has lent, and has nothing left."""
        return self.lent > ROUNDING and self.lendable <= ROUNDING

    def meets(self, other: "Job") -> bool:
        """Whether the two compete: in one tier, for some node."""
        return bool(self.tiers & other.tiers and self.nodes & other.nodes) and self.reserved == other.reserved

    def is_like(self, other: "Job") -> bool:
        """Whether one user asks for the same with both."""
        return self.user == other.user and self.asks == other.asks

    def may_not_pass(self, other: "Job") -> bool:
        """Whether nothing that could be lent lets it pass that one."""
        more = not other.in_scope or other.most_decided > self.least_decided
        return more or (other.exhausted and other.user != self.user) or self.is_like(other)


class Place(NamedTuple):
    """Where a job stands in a queue; the lower, the further ahead."""

    behind: int
    """−priority."""
    turn: tuple[float, int]


@dataclass
class Raised:
    """A job that goes ahead."""

    job: Job
    lenders: dict[int, float]
    """GPUs by id."""
    before: Place
    """The first place that it passes."""
    after: Place | None
    """The last one that it does not pass."""
    priority: int = 0

    def stands(self, priority: int) -> bool:
        """Whether this priority has it between those two."""
        place = Place(-priority, self.job.turn)
        return place < self.before and (self.after is None or self.after < place)

    @property
    def least(self) -> int:
        """The least priority that does."""
        priority = -self.before.behind
        return priority if self.stands(priority) else priority + 1

    @property
    def highest(self) -> int:
        """And the highest, where there is a place that it does not pass."""
        assert self.after is not None
        priority = -self.after.behind
        return priority if self.stands(priority) else priority - 1


@dataclass
class Lending:
    """The rule over one queue."""

    jobs: Sequence[Job]
    wanted: Sequence[int]
    """Ids, the most wanted first."""
    seconds: Mapping[int, float]
    """That each of these is charged for."""
    promised: Mapping[int, Mapping[int, float]]
    """Of each job that could not be given back: GPU-seconds by id of the lender."""
    most: int
    left_out: set[int] = field(default_factory=set)
    """Jobs that there was no priority for."""
    first: list[Job] = field(default_factory=list)
    """Wanted ones that have nobody to pass: who is wanted less stays behind them."""

    def decide(self) -> list[Raised]:
        """The raised jobs with their priorities, the most wanted first."""
        while True:
            raised = self.raise_in_turn()
            give_priorities(raised, self.most)
            without = [one.job.job_id for nth, one in enumerate(raised) if any(wrongly_before(one, raised[:nth]))]
            if not without:
                return raised
            self.left_out.add(without[-1])

    def raise_in_turn(self) -> list[Raised]:
        by_id = {job.job_id: job for job in self.jobs}
        raised: list[Raised] = []
        self.first = []
        promises = {one: dict(parts) for one, parts in self.promised.items()}
        carrying = [by_id[one] for one in self.wanted if by_id[one].is_raised]
        half = math.ceil(self.most / 2)
        counted = sum(min(count, half) for count in Counter(job.user for job in carrying).values())
        later = []
        for wanted in self.wanted:
            job, new = by_id[wanted], [one.job for one in raised if not one.job.is_raised]
            there = any(job.nodes & one.nodes for one in (*carrying, *new))
            # Who goes ahead already is not replaced; of one user half of them have their turn.
            taken = not job.is_raised and counted + len(new) >= self.most and there
            if taken or sum(one.job.user == job.user for one in raised) >= half:
                later.append(wanted)
            else:
                self.raise_in(wanted, by_id, raised, promises)
        for wanted in later:
            self.raise_in(wanted, by_id, raised, promises)
        return raised

    def raise_in(
        self, wanted: int, by_id: Mapping[int, Job], raised: list[Raised], promises: dict[int, dict[int, float]]
    ) -> None:
        """One of the wanted jobs, where it can go ahead."""
        if len(raised) == self.most or wanted in self.left_out:
            return
        others = [parts for borrower, parts in promises.items() if borrower != wanted]
        left = {job.job_id: job.lendable - sum(parts.get(job.job_id, 0.0) for parts in others) for job in self.jobs}
        if (found := self.raise_one(by_id[wanted], raised, left)) is not None:
            raised.append(found)
            promises[wanted] = {at: gpus * self.seconds[wanted] for at, gpus in found.lenders.items()}

    def raise_one(self, job: Job, raised: Sequence[Raised], left: Mapping[int, float]) -> Raised | None:
        """As far ahead as it can go, or where it stands; None: it goes back to where Slurm has it."""
        alone = Place(-min(job.priorities), job.turn)
        gone = {one.job.job_id for one in raised} | {one.job_id for one in self.first}
        bounds = [
            place
            for other in self.first
            if job.meets(other) and (place := Place(-max(other.priorities), other.turn)) < alone
        ]
        ahead = sorted(
            (place, other.job_id, other)
            for other in self.jobs
            if other is not job and other.can_start and job.meets(other) and other.job_id not in gone
            for place in {Place(-priority, other.turn) for priority in other.priorities}
            if place < alone
        )
        places = [self.place(job, ahead, first, bounds, raised, left) for first in range(len(ahead))]
        first = next((nth for nth, found in enumerate(places) if found is not None), len(ahead))
        stands = sum(place < Place(-job.current, job.turn) for place, _, _ in ahead)
        # Those that may be passed by nobody count for nothing.
        begin = max((nth + 1 for nth, (_, _, other) in enumerate(ahead) if job.may_not_pass(other)), default=0)
        if job.is_raised and begin <= stands < len(ahead) and 2 * (first - begin) > stands - begin:
            there = places[stands]
            if there is not None and there.stands(job.current):
                return self.worth_it(job, there, stands)
        return self.worth_it(job, places[first] if first < len(ahead) else None, first)

    def worth_it(self, job: Job, found: Raised | None, first: int) -> Raised | None:
        """It there, unless it stands there anyway."""
        if found is not None and found.least > max(job.priorities):
            return found
        if first == 0:
            self.first.append(job)
        return None

    def place(
        self,
        job: Job,
        ahead: Sequence[tuple[Place, int, Job]],
        first: int,
        bounds: Sequence[Place],
        raised: Sequence[Raised],
        left: Mapping[int, float],
    ) -> Raised | None:
        """The job behind the first so many of those ahead; None: it may not stand there."""
        passed = [other for _, _, other in ahead[first:]]
        if any(map(job.may_not_pass, passed)):
            return None
        behind = [*bounds, ahead[first - 1][0]] if first else bounds
        found = Raised(job, {}, ahead[first][0], max(behind, default=None))
        lenders = self.lenders(job, passed, left)
        if lenders is None or not found.stands(found.least) or not stays_behind(found, raised):
            return None
        found.lenders = lenders
        return found

    def lenders(self, job: Job, passed: Sequence[Job], left: Mapping[int, float]) -> dict[int, float] | None:
        """Who lends, of the jobs that it passes in Slurm's order; None: one of them cannot lend its part."""
        found: dict[int, float] = {}
        missing = job.size
        for nth, other in enumerate(passed):
            # One that stands in several places lends in the last of them.
            if other.user == job.user or other in passed[nth + 1 :] or missing <= ROUNDING:
                continue
            gpus = min(other.size, missing)
            if left[other.job_id] < gpus * self.seconds[job.job_id] - ROUNDING:
                return None
            found[other.job_id] = gpus
            missing -= gpus
        return found


def bars(one: Job, raised: Job) -> bool:
    """Whether a job may not stand before one that is raised, too: that one was before it, and lends nothing."""
    was_ahead = Place(-max(raised.priorities), raised.turn) < Place(-min(one.priorities), one.turn)
    other = raised.user != one.user or raised.most_decided > one.least_decided or one.is_like(raised)
    return one.meets(raised) and was_ahead and other


def stays_behind(found: Raised, raised: Sequence[Raised]) -> bool:
    """Whether it can stand behind those that it may not pass, wherever they stand."""
    place = Place(-found.least, found.job.turn)
    barred = [other for other in raised if other.after is not None and bars(found.job, other.job)]
    return all(Place(-other.highest, other.job.turn) < place for other in barred)


def give_priorities(raised: Sequence[Raised], most: int) -> None:
    """Those that keep the order of the policy, as far as there is room; who stands right keeps what it has.

    Nobody does where one would have the last priority before a place that it does not pass, and others are free: two
    priorities may come one nearer before anybody looks again.
    """
    _give(raised, most, keep=True)
    if any(one.after is not None and one.priority == one.highest > one.least for one in raised):
        _give(raised, most, keep=False)


def _give(raised: Sequence[Raised], most: int, *, keep: bool) -> None:
    for nth in reversed(range(len(raised))):
        one = raised[nth]
        met = [Place(-other.priority, other.job.turn) for other in raised[nth + 1 :] if one.job.meets(other.job)]
        # One that is wanted less, and stands where this one cannot go, changes nothing for it.
        behind = [other for other in met if one.after is None or Place(-one.highest, one.job.turn) < other]
        least = one.least
        while any(other < Place(-least, one.job.turn) for other in behind):
            least += 1
        if keep and least <= one.job.current and one.stands(one.job.current):
            one.priority = one.job.current
        else:
            # As much above it as leaves room for all that may be raised.
            highest = 2**32 - 1000 if one.after is None else min(one.highest, 2**32 - 1000)
            wanted = least + max(min(one.least // 64, highest - one.least), 0) // most
            one.priority = wanted if one.stands(wanted) else one.highest


def wrongly_before(one: Raised, wanted_more: Sequence[Raised]) -> Iterator[bool]:
    place = Place(-one.priority, one.job.turn)
    for other in wanted_more:
        yield bars(one.job, other.job) and place < Place(-other.priority, other.job.turn)
