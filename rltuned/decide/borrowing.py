"""Fair share is traded within a bound (decision 0160): what accounts may borrow, and what they have borrowed.

A job that starts ahead of a job of another account, which Slurm alone has before it, uses GPU time that fair share gave
to that account: its account borrows. Each account has a budget of borrowed GPU-seconds. What was borrowed is forgotten
with the half-life of Slurm's own fair share. Who has used up the budget is raised above nobody else's jobs.

Where all jobs are of one account, its users stand in the place of accounts.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Final

import numpy as np

from rltuned.cluster.borrowed import Borrowed, Loan, owners
from rltuned.cluster.tables import Bools, Floats, JobState, JobTable, Rows, Snapshot
from rltuned.cluster.taken import taken_gpus
from rltuned.decide.ranks import Order

WEEK: Final = 7 * 86_400.0
UNLIMITED: Final = 365 * 86_400.0
"""Seconds that a job without a limit is taken to run, as the features have it."""
_ROUNDING: Final = 1e-3
"""GPU-seconds."""


def charged(borrowed: Borrowed, snapshot: Snapshot) -> Borrowed:
    """Charges what has started since, and what runs longer than it was charged for; the rest decays.

    A raised job that is gone is charged, too: it may have started and ended since the last reading.
    """
    jobs, now = snapshot.jobs, snapshot.time
    half_life = snapshot.scheduler.half_life
    kept = 0.5 ** (max(now - borrowed.time, 0.0) / half_life) if half_life > 0 else 1.0
    owed = {account: seconds * kept for account, seconds in borrowed.owed.items()}
    running: dict[int, Loan] = {}
    raised: dict[int, Loan] = {}
    for job, loan in borrowed.raised.items():
        row = _row(jobs, job, loan)
        if row is not None and jobs.state[row] == JobState.PENDING:
            raised[job] = loan
            continue
        owed[loan.account] = owed.get(loan.account, 0.0) + loan.seconds
        if row is not None:
            running[job] = loan
    loans = {**borrowed.running, **running}
    begun = {job: row for job, loan in loans.items() if (row := _row(jobs, job, loan)) is not None}
    taken = taken_gpus(snapshot, np.array([*begun.values()], dtype=np.intp))
    for (job, row), gpus in zip(begun.items(), taken.tolist(), strict=True):
        loan = loans[job]
        used = max(now - float(jobs.start_time[row]), 0.0) * max(gpus, 1.0)
        over = max(used - loan.seconds, 0.0) if np.isfinite(used) else 0.0
        owed[loan.account] = owed.get(loan.account, 0.0) + over
        running[job] = loan._replace(seconds=loan.seconds + over)
    return Borrowed(now, {account: seconds for account, seconds in owed.items() if seconds >= 1.0}, raised, running)


def _row(jobs: JobTable, job: int, loan: Loan) -> int | None:
    row = jobs.row_of.get(job)
    return row if row is not None and int(jobs.submit_time[row]) == loan.submit_time else None


def budget_of(snapshot: Snapshot, share: float) -> float:
    """GPU-seconds that each account may owe: an equal part of that share of what the usable GPUs do in a half-life.

    Of a week where usage does not decay. A node without GPUs counts as one: so do jobs without GPUs.
    """
    nodes = snapshot.nodes
    gpus = float(np.maximum(nodes.gpus.sum(axis=1), 1)[nodes.usable].sum())
    accounts = max(len(np.unique(owners(snapshot.jobs.account, snapshot.jobs.user).codes)), 1)
    return share * gpus * (snapshot.scheduler.half_life or WEEK) / accounts


class Purse:
    """What each of n managed jobs would borrow, and what the accounts have left in this cycle."""

    def __init__(self, snapshot: Snapshot, rows: Rows, estimates: Floats, borrowed: Borrowed, share: float) -> None:
        """Args:
        snapshot: as read.
        rows: (n,) of the managed jobs.
        estimates: (N,) predicted run times, seconds, NaN: the time limit.
        borrowed: until now.
        share: `decide.borrow`.
        """
        jobs, accounts = snapshot.jobs, owners(snapshot.jobs.account, snapshot.jobs.user)
        self._jobs, self._rows = jobs, rows
        self._names = (*accounts.names, "")
        self._owner = accounts.codes[rows].astype(np.intp)
        """(n,) index into `_names`; −1, none, is the last."""
        run_time = np.minimum(np.fmin(estimates, jobs.time_limit)[rows], UNLIMITED)
        tasks = np.maximum(jobs.array_tasks[rows], 1)
        self._seconds: Floats = np.maximum(run_time, 1.0) * np.maximum(taken_gpus(snapshot, rows), 1.0) * tasks
        self.budget = budget_of(snapshot, share)
        self._left = np.array([max(self.budget - borrowed.owed.get(name, 0.0), 0.0) for name in self._names])

    def orders(self, members: Rows, wanted: Order, base_rank: Order) -> Iterator[Order]:
        """Orders of what the policy sees of a class, the most wanted one first: as far as the accounts can pay; each
        account in its own places; Slurm's own.

        Args:
            members: (m,) the class's jobs, as positions among the managed ones.
            wanted: (v,) those that the policy sees, as positions in `members`, in its order.
            base_rank: (m,) rank by Slurm alone.

        Yields:
            (v,)
        """
        yield self._affordable(members, wanted, base_rank, self._left.copy())
        yield self._affordable(members, wanted, base_rank, np.zeros(len(self._left)))
        yield wanted[np.argsort(base_rank[wanted])]

    def _affordable(self, members: Rows, wanted: Order, base_rank: Order, left: Floats) -> Order:
        """Jobs are taken in the wanted order. One that has to pass other accounts' places needs an account that can
        pay. The places that are left stay with their accounts, which give them to their jobs in the wanted order.
        """
        owner, seconds = self._owner[members], self._seconds[members]
        places = _Places(owner[wanted], base_rank[wanted])
        waiting: dict[int, deque[int]] = defaultdict(deque)
        front: list[int] = []
        for member in wanted.tolist():
            mine = int(owner[member])
            if not places.passes_others(mine):
                waiting[mine].append(member)
                front.append(waiting[mine].popleft())
            elif left[mine] >= seconds[member]:
                left[mine] -= seconds[member]
                front.append(member)
            else:
                waiting[mine].append(member)
                continue
            places.take(mine)
        rest = [waiting[mine].popleft() for mine in places.left()]
        return np.array([*front, *rest], dtype=np.intp)

    def pay(self, members: Rows, seen: Bools, higher: Bools, rank: Order, base_rank: Order) -> dict[int, Loan] | None:
        """Take out what an order of a class borrows. None: an account cannot pay, and nothing is taken.

        Args:
            members: (m,) the class's jobs, as positions among the managed ones.
            seen: (m,) whether the policy sees the job. Others may not be raised at all.
            higher: (m,) whether the order gives the job a higher priority than Slurm alone does.
            rank: (m,) of the order.
            base_rank: (m,) by Slurm alone.
        """
        if (higher & ~seen).any():
            return None
        visible = np.flatnonzero(seen)
        ahead = visible[overtaking(self._owner[members[visible]], rank[visible], base_rank[visible])]
        raised = members[ahead[higher[ahead]]]
        left = self._left.copy()
        np.subtract.at(left, self._owner[raised], self._seconds[raised])
        if (left < -_ROUNDING).any():
            return None
        self._left = np.maximum(left, 0.0)
        ids, submit = (column[self._rows[raised]].tolist() for column in (self._jobs.job_id, self._jobs.submit_time))
        accounts, seconds = (column[raised].tolist() for column in (self._owner, self._seconds))
        return {
            job: Loan(int(time), self._names[account], cost)
            for job, time, account, cost in zip(ids, submit, accounts, seconds, strict=True)
        }


class _Places:
    """The places of accounts in Slurm's own order, taken from the front."""

    def __init__(self, owner: Rows, base_rank: Order) -> None:
        """(v,) account of each job, and its rank by Slurm alone; accounts are counted from −1."""
        order = np.argsort(base_rank)
        self._order = owner[order].tolist()
        self._of: dict[int, deque[int]] = defaultdict(deque)
        for mine, place in zip(self._order, base_rank[order].tolist(), strict=True):
            self._of[mine].append(place)

    def passes_others(self, mine: int) -> bool:
        """Whether the account's next job, started now, would pass a place of another account."""
        own = self._of[mine][0]
        return any(places[0] < own for other, places in self._of.items() if other != mine and places)

    def take(self, mine: int) -> None:
        """The account's first place is taken."""
        self._of[mine].popleft()

    def left(self) -> list[int]:
        """Accounts of the places that are left, the front first."""
        return [mine for _, mine in sorted((place, mine) for mine, places in self._of.items() for place in places)]


def overtaking(owner: Rows, rank: Order, base_rank: Order) -> Rows:
    """Which of v jobs stand ahead of a place of another account's that Slurm alone has before their account's.

    The k-th job of an account is compared with the k-th place of the account: an account's jobs may exchange theirs.
    """
    places = _Places(owner, base_rank)
    found = []
    for at in np.argsort(rank).tolist():
        if places.passes_others(int(owner[at])):
            found.append(at)
        places.take(int(owner[at]))
    return np.array(found, dtype=np.intp)
