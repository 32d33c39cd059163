"""Ways in which the rule, or the book of loans, could be wrong. `measures.guards --rule` says which test finds each."""

from typing import NamedTuple

TESTS = (
    "core",
    "decide/test_raising.py",
    "decide/test_loans.py",
    "decide/test_plan.py",
    "decide/test_lending_reference.py",
    "decide/test_lending_machine.py",
)
LOANS, RAISING = "decide/loans.py", "decide/raising.py"


class Mutant(NamedTuple):
    """One thing that is wrong."""

    name: str
    file: str
    """Below the package."""
    right: str
    """Found once in the file."""
    wrong: str
    promise: str = ""
    """What breaks with it."""
    tests: tuple[str, ...] = TESTS
    """Below tests/unit: files, folders, or single tests as FILE::NAME."""


MUTANTS = (
    # --- the rule
    Mutant("what was lent is ignored", RAISING, "return part - book.lent(jobs, rows)", "return part"),
    Mutant("one that has lent its part is passed", RAISING, "lent = self.exhausted[who] &", "lent = (who < 0) &"),
    Mutant(
        "more was decided, and it is passed", RAISING, " | (self.scope.most_decided[who] > self.scope.decided[at])", ""
    ),
    Mutant("out of scope, and it is passed", RAISING, "decided = ~self.scope.passable[who] |", "decided ="),
    Mutant("one that cannot lend is passed", RAISING, "(shorts[last] == shorts[:-1]) & pays", "pays"),
    Mutant("two borrow the same", RAISING, "self.left[lender] -= gpus * rule.cost[at]", "pass"),
    Mutant("promises are forgotten", LOANS, "parts = one.parts if one.unwanted else ()", "parts = ()"),
    Mutant("a promise is kept by the job itself", RAISING, "self.left[own.lenders] += own.seconds", "pass"),
    Mutant("the median alone is charged", RAISING, "np.maximum(predicted, OF_LIMIT * limit)", "predicted"),
    Mutant("siblings pass each other", RAISING, "sibling = self.same[who] == self.same[at]", "sibling = who < 0"),
    Mutant(
        "siblings are raised in the order of the policy", RAISING, "np.lexsort((by_slurm, same[at]))", "order[places]"
    ),
    Mutant("a raised job is passed", RAISING, "return np.asarray(ahead & barred", "return np.asarray(False & barred"),
    Mutant(
        "who is wanted most is passed at the front",
        RAISING,
        "self.kept[at] = Stop.FRONT, True",
        "self.kept[at] = 0, False",
    ),
    Mutant("the one before it may be passed, so may all", RAISING, "who[begin:], key[begin:]", "who, key"),
    Mutant("any number is raised", RAISING, "return len(self.raises) >= self.rule.most", "return False"),
    Mutant(
        "an array counts as one job",
        RAISING,
        "managed.size * managed.tasks\n        self.unit",
        "managed.size\n        self.unit",
    ),
    Mutant(
        "an array lends as one job", RAISING, "* managed.size * managed.tasks\n    return", "* managed.size\n    return"
    ),
    Mutant(
        "tiers do not matter",
        RAISING,
        " & in_tier & (self.reservation == reserved)",
        " & (self.reservation == reserved)",
    ),
    Mutant("nodes do not matter", RAISING, "nodes @ nodes.T > 0.5", "nodes @ nodes.T > -1"),
    Mutant(
        "jobs that cannot start lend", RAISING, "self.scope.startable & (self.scope.base > 0)", "(self.scope.base > 0)"
    ),
    Mutant(
        "it stands behind whom it passes",
        RAISING,
        "return (key + self.tie[at]) // self.unit + 1",
        "return (key + self.tie[at]) // self.unit",
    ),
    Mutant(
        "it passes one more",
        RAISING,
        "(key + self.tie[at] - 1) // self.unit",
        "(key + self.tie[at] - 1) // self.unit + 1",
    ),
    Mutant(
        "it is written anew in each cycle",
        RAISING,
        "now if keep and least <= now <= one.high else min(least + spare, one.high)",
        "min(least + spare, one.high)",
    ),
    Mutant("own jobs lend", RAISING, "last_place & (rule.user[who] != rule.user[at])", "last_place"),
    Mutant(
        "a job in two places lends twice",
        RAISING,
        "(key == rule.low[who]) | (rule.low[who] <= rule.low[at])",
        "who >= 0",
    ),
    Mutant("the best place alone counts", RAISING, "members[self.low[members] < self.high[members]]", "members[:0]"),
    Mutant("an offer without a raise", RAISING, "if nth == len(who) or low[nth] <=", "if nth == len(who) or 0 >="),
    Mutant("a raised job moves for each", RAISING, "if keeps and 2 * nth > stands", "if keeps and nth > stands"),
    Mutant("it keeps a place that is not lent", RAISING, " and bool(able[stands])", ""),
    Mutant("one user takes all", RAISING, "of_user[user] >= half or ", ""),
    Mutant("who goes ahead is replaced", RAISING, "(new and free <= 0", "(False and free <= 0"),
    Mutant("raises in other pools are in the way", RAISING, "free <= 0 and there[rule.pool[at]]", "free <= 0"),
    Mutant("all without room are left out", RAISING, "left_out.add(without_room[-1])", "left_out.update(without_room)"),
    Mutant("whom it cannot reach pushes it up", RAISING, "for other in met if other < most", "for other in met"),
    Mutant("raised jobs stand a point apart", RAISING, "min(least + spare, one.high)", "min(least, one.high)"),
    # --- the book
    Mutant("only what was predicted is lent", LOANS, "max(self.seconds, now - self.began) if", "self.seconds if"),
    Mutant("only what was used is lent", LOANS, "max(self.seconds, now - self.began) if", "now - self.began if"),
    Mutant("accounting does not settle", LOANS, "return took", "return loan.used"),
    Mutant("accounting is believed whatever it says", LOANS, "took <= loan.used + GRACE", "took >= 0"),
    Mutant(
        "another run's time settles",
        LOANS,
        "this_run = abs(start - loan.start) <= GRACE if loan.start else start >= loan.submit_time",
        "this_run = True",
    ),
    Mutant(
        "cancelled borrowers have used something",
        LOANS,
        "if not loan.start and job in self.told.cancelled:",
        "if False:",
    ),
    Mutant(
        "never settled without accounting", LOANS, "if self.now - loan.ended > UNTOLD else None", "if False else None"
    ),
    Mutant(
        "the wall clock counts",
        LOANS,
        "now = min(snapshot.time, self.time) if self.time else snapshot.time",
        "now = snapshot.time",
    ),
    Mutant("a clock that goes back forgives", LOANS, "back = max(book.time - now, 0.0)", "back = 0.0"),
    Mutant(
        "the start by the wall clock is believed",
        LOANS,
        "began = self.now - min(max(ran, 0.0), self.passed)",
        "began = self.now - ran",
    ),
    Mutant(
        "a lender that has started lends on",
        LOANS,
        "parts = self.still(loan.parts)",
        "parts = loan.parts",
    ),
    Mutant(
        "who is gone unseen has used nothing",
        LOANS,
        "unseen = max(offer.tasks - (waiting if submit == offer.submit_time else 0) - len(seen), 0)",
        "unseen = 0",
    ),
    Mutant(
        "of an array the missing ones start",
        LOANS,
        "for nth, at in enumerate(seen):",
        "for nth, at in enumerate(seen[: max(offer.able - waiting, 0)]):",
    ),
    Mutant("the last task counts twice", LOANS, "dict.fromkeys((job, *tasks))", "(job, *tasks)"),
    Mutant("tasks of before are lent", LOANS, "task not in before.tasks", "True"),
    Mutant("a limited array uses its lenders up", LOANS, "rest = rest if nth % offer.able else offer.parts", "pass"),
    Mutant(
        "a requeued borrower is off the book", LOANS, " and self.book.loans[job].used < 0 <= loan.used:", " and False:"
    ),
    Mutant(
        "the second run is not lent",
        LOANS,
        "        self.loans[job] = loan\n",
        "        self.loans.setdefault(job, loan)\n",
    ),
    Mutant(
        "a second run forgives the first",
        LOANS,
        "if (before := self.loans.get(job)) is not None:",
        "if False and (before := self.loans.get(job)):",
    ),
    Mutant(
        "a request that grew is lent as it was",
        LOANS,
        "taken = tuple(part._replace(gpus=part.gpus * more) for part in taken)",
        "pass",
    ),
    Mutant(
        "a lender that cannot be read is gone",
        LOANS,
        "self.waiting.get(job) == submit_time or self.snapshot.is_unread(job)",
        "self.waiting.get(job) == submit_time",
    ),
    Mutant(
        "a borrower that cannot be read has ended",
        LOANS,
        "if loan.used >= 0 or (row is None and self.snapshot.is_unread(job)):",
        "if loan.used >= 0:",
    ),
    Mutant(
        "a raised job that cannot be read has run",
        LOANS,
        "if (waits or row is None) and self.snapshot.is_unread(job):",
        "if False:",
    ),
    Mutant(
        "a task that could not be read is new",
        LOANS,
        "{*self.snapshot.array_of, *filter(self.snapshot.is_unread, before)}",
        "{*self.snapshot.array_of}",
    ),
    Mutant("who submits again has not waited", LOANS, "inherited[heir] = Inherited(submit, wait)", "pass"),
    Mutant("who submits again has not lent", LOANS, "given[heir] = known._replace(", "_ = known._replace("),
    Mutant(
        "waits add up though they were at a time",
        LOANS,
        "return float(np.clip(since - (gone.last - gone.wait), 0.0, gone.wait))",
        "return gone.wait",
    ),
    Mutant("what others give is inherited", LOANS, "(jobs.user.value(row), *asked)", "asked"),
    Mutant("a lost book forgives", LOANS, "np.maximum(lendable, 0.0).tolist()", "(0.0 * lendable).tolist()"),
    Mutant(
        "late give-backs are off the book",
        LOANS,
        "return replace(self, offers={**kept, **offers})",
        "return replace(self, offers=dict(offers))",
    ),
    Mutant(
        "raises that were not written stay on the book",
        LOANS,
        "for job, offer in self.offers.items() if job in jobs}",
        "for job, offer in self.offers.items()}",
    ),
    # --- around them
    Mutant("values below nought", "core/changes.py", "if not 0 <= value <= MAX_FACTOR:", "if not value <= MAX_FACTOR:"),
    Mutant(
        "a job gets less than Slurm gives",
        "decide/planned_changes.py",
        "np.where(target > managed.base, np.minimum(target - jobs.base[managed.rows], MAX_FACTOR), 0)",
        "target - jobs.base[managed.rows] - 1",
    ),
    Mutant(
        "raises are written first",
        "decide/planned_changes.py",
        "(not changes[nth].gives_back, nth)",
        "(changes[nth].gives_back, nth)",
    ),
    Mutant(
        "what others add was not decided",
        "decide/scope.py",
        "passable, decided + theirs, most_decided + theirs)",
        "passable, decided, most_decided)",
    ),
    Mutant("deadlines are passed", "decide/scope.py", "Veto.SEVERAL_QOS, Veto.DEADLINE)", "Veto.SEVERAL_QOS)"),
    Mutant(
        "only GPUs count", "core/taken.py", "found: Floats = np.maximum.reduce(shares)", "found: Floats = shares[0]"
    ),
    Mutant(
        "a user's own nodes are shared by all",
        "core/taken.py",
        "share = np.where(alone(snapshot, rows), whole, share)",
        "share = np.where(whole_nodes(snapshot, rows), whole, share)",
    ),
    Mutant(
        "running tasks of an array count as waiting ones",
        "core/tables.py",
        "- started.get(int(self.job_id[row]), 0)",
        "",
    ),
)
