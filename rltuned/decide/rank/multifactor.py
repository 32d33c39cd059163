"""Slurm's own priority: the arithmetic of priority/multifactor, with fair share and its decay.

    age·W_age + fair share·W_fairshare + job size·W_jobsize + partition·W_partition + QOS·W_qos + Σ TRES·W_tres

Source: "Multifactor Priority Plugin" and "Fair Tree Fairshare Algorithm" of Slurm's documentation, slurm.conf(5), and
where those are silent sprio(1) and sshare(1) of real clusters (22.05, 24.11, 26.05), which the tests compare with. The
simulator takes its base priorities from here, and adds site factor and nice.

Not here: the classic fair share, FairShare=parent, PriorityWeightAssoc, PriorityUsageResetPeriod, and of PriorityFlags
all but SMALL_RELATIVE_TO_TIME and MAX_TRES.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rltuned.core.errors import ConfigError
from rltuned.core.notation import tres_name
from rltuned.core.tables import Bools, Category, Codes, Floats

DAY: Final = 86_400.0


@dataclass(frozen=True)
class Weights:
    """slurm.conf(5), Priority*. The defaults are Slurm's: with them every job has priority 1, and the order is FIFO."""

    age: float = 0.0  # PriorityWeightAge
    fairshare: float = 0.0
    job_size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    tres: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """PriorityWeightTRES, by name: "cpu", "mem", "gres/gpu". A typed GPU is a TRES of its own."""
    max_age: float = 7 * DAY
    """PriorityMaxAge, seconds: a job that waited this long has the whole weight of the age."""
    half_life: float = 7 * DAY  # PriorityDecayHalfLife, seconds; 0: usage does not decay
    favor_small: bool = False  # PriorityFavorSmall: the smaller a job, the larger its size factor
    small_relative_to_time: bool = False
    """PriorityFlags=SMALL_RELATIVE_TO_TIME: size is per minute of the time limit."""
    max_tres: bool = False  # PriorityFlags=MAX_TRES: of what a partition bills, the dearest only

    @classmethod
    def parse(cls, text: str) -> "Weights":
        """A name of `PRESETS`, or a list as "age=1000,fairshare=100000,max_age=86400,gres/gpu=500": the fields here
        (`favor_small=1`: yes), and TRES by their names, which alone may be negative.
        ConfigError names the part that is neither.
        """
        if text in PRESETS:
            return PRESETS[text]
        found: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            name = tres_name(name)
            found[name] = math.nan
            with suppress(ValueError):
                found[name] = float(value)
            least = 0.0 if name in cls.__annotations__ else -math.inf
            if not (name and least <= found[name] < math.inf and found[name] != -math.inf):
                presets = ", ".join(PRESETS)
                raise ConfigError(f"weights '{text}': '{part}' is no NAME=NUMBER; or give one of {presets}")
        own: dict[str, Any] = {name: found.pop(name) for name in cls.__annotations__ if name in found}
        own |= {name: bool(own[name]) for name in FLAGS if name in own}
        return cls(**own, tres=MappingProxyType(found))


FLAGS: Final = ("favor_small", "small_relative_to_time", "max_tres")
"""Fields of `Weights` that are yes or no."""

USUAL: Final = Weights(
    age=10_000,
    fairshare=10_000,
    job_size=1_000,
    partition=1_000,
    qos=10_000,
    tres=MappingProxyType({"cpu": 100.0, "mem": 100.0, "gres/gpu": 1_000.0}),
    max_age=DAY,
)
"""What GPU sites typically have: age, fair share and QOS of the same weight, size an order of magnitude less."""
FAIR_SHARE: Final = Weights(age=1_000, fairshare=100_000)  # of a site where fair share decides
PRESETS: Final[Mapping[str, Weights]] = MappingProxyType({"usual": USUAL, "fair-share": FAIR_SHARE})


class Machine(NamedTuple):
    """What job sizes are shares of."""

    nodes: int
    cpus: int


@dataclass(frozen=True)
class PendingJobs:
    """n pending jobs. All columns but `eligible` stay as they are while a job waits."""

    eligible: Floats
    """(n,) seconds on the clock of `now`: since when the job gathers age (AccrueTime); NaN while it does not."""
    association: npt.NDArray[np.intp]  # (n,) row in `Associations` of its user in its account
    nodes: Floats  # (n,) least number of nodes
    cpus: Floats  # (n,) in all
    partition: Floats
    """(n,) PriorityJobFactor of its partition over the highest of all partitions (`normalised`)."""
    qos: Floats  # (n,) priority of its QOS over the highest of all QOS (`normalised`)
    tres: Floats
    """(n, T) share of its *partition's* TRES that it asks for, in the order of `Weights.tres`."""
    time_limit: Floats  # (n,) seconds, above 0; infinite where neither job nor partition has one

    @classmethod
    def of(cls, n: int, **columns: Any) -> "PendingJobs":
        """From columns of length `n` or one value for all; one node and one CPU each, nothing else, where not given."""
        given: dict[str, Any] = {"eligible": 0.0, "association": 0, "nodes": 1.0, "cpus": 1.0, "partition": 0.0}
        given |= {"qos": 0.0, "tres": np.zeros((n, 0)), "time_limit": np.inf} | columns
        for name, value in given.items():
            column = np.asarray(value, dtype=np.intp if name == "association" else np.float64)
            given[name] = column if name == "tres" else np.broadcast_to(column, (n,))
        return cls(**given)

    def __len__(self) -> int:
        return len(self.eligible)

    def take(self, rows: npt.NDArray[np.intp]) -> "PendingJobs":
        """The rows given, in that order."""
        return PendingJobs(**{name: column[rows] for name, column in vars(self).items()})


def changing_term(weights: Weights, now: float, eligible: Floats, fairshare: Floats) -> Floats:
    """(n,) of age and fair share; `eligible` as of `PendingJobs`, (n,) fair-share factor of each job."""
    waited = np.fmax(now - eligible, 0.0)  # NaN: not eligible, no age
    total: Floats = weights.age * np.minimum(waited / weights.max_age, 1.0) + weights.fairshare * fairshare
    return total


def fixed_terms(weights: Weights, machine: Machine, jobs: PendingJobs) -> tuple[Floats, ...]:
    """(n,) each: what stays while a job waits, in the order in which it is added up; none that is 0 for all jobs."""
    terms = (
        weights.job_size * job_size(weights, machine, jobs),
        weights.partition * jobs.partition,
        weights.qos * jobs.qos,
        (jobs.tres * np.array(list(weights.tres.values()))).sum(axis=1),
    )
    return tuple(term for term in terms if term.any())


def job_size(weights: Weights, machine: Machine, jobs: PendingJobs) -> Floats:
    """(n,) size factor of each job, 0 … 1: of nodes and CPUs alike, or of CPUs for each minute of the time limit
    (PriorityFavorSmall and SMALL_RELATIVE_TO_TIME of slurm.conf(5); minutes and node's average CPUs as read in
    priority_multifactor.c).
    """
    nodes, cpus = jobs.nodes / machine.nodes, jobs.cpus / machine.cpus
    if weights.small_relative_to_time:
        size = np.maximum(nodes, cpus) / np.ceil(jobs.time_limit / 60.0)
    else:
        size = (nodes + cpus) / 2.0
    return np.clip(1.0 - size if weights.favor_small else size, 0.0, 1.0)


def normalised(values: Floats) -> Floats:
    """Factors in [0, 1]: each value over the largest, 0 where all are 0. For partitions and for QOS."""
    highest = float(values.max(initial=0.0))
    return np.asarray(values / highest) if highest > 0 else np.zeros(len(values))


class Association(NamedTuple):
    """One line of ``sacctmgr show assoc``: an account, or a user in an account."""

    account: str
    user: str = ""  # "": the account itself
    parent: str = "root"  # of an account. A user's is his account.
    shares: float = 1.0  # RawShares (Fairshare=)


@dataclass(frozen=True)
class Associations:
    """The tree of accounts and users; A rows, row 0 is root, parents stand before their children."""

    entries: tuple[Association, ...]
    parent: npt.NDArray[np.intp]  # (A,) row of the parent; root's is itself

    @classmethod
    def of(cls, entries: Iterable[Association]) -> "Associations":
        """From associations, parents before their children; root itself need not be among them. ValueError: one is
        named twice, or its parent is not named before it.
        """
        ordered, parents, rows = [Association("root", shares=0.0)], [0], {("root", ""): 0}
        for each in entries:
            named = each.account, each.user
            if named == ("root", ""):
                continue
            above = rows.get((each.account if each.user else each.parent, ""))
            if above is None:
                raise ValueError(f"association {each.account}/{each.user} hangs in the air")
            if named in rows:
                raise ValueError(f"association {each.account}/{each.user} is listed twice")
            rows[named] = len(ordered)
            ordered.append(each)
            parents.append(above)
        return cls(tuple(ordered), np.asarray(parents, dtype=np.intp))

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def row_of(self) -> dict[tuple[str, str], int]:
        """Row by account and user ("" for the account itself)."""
        return {(each.account, each.user): row for row, each in enumerate(self.entries)}

    @cached_property
    def is_user(self) -> Bools:
        """(A,)"""
        return np.array([bool(each.user) for each in self.entries])

    @cached_property
    def share(self) -> Floats:
        """(A,) S: the shares over those of all siblings, 0 for root and where no sibling has any."""
        shares = np.array([each.shares for each in self.entries])
        siblings = np.zeros(len(self))
        np.add.at(siblings, self.parent[1:], shares[1:])
        of_parent = siblings[self.parent]
        share: Floats = np.divide(shares, of_parent, out=np.zeros(len(self)), where=of_parent > 0)
        share[0] = 0.0
        return share

    @cached_property
    def levels(self) -> tuple[npt.NDArray[np.intp], ...]:
        """Rows by depth, those right below root first."""
        depth = np.zeros(len(self), dtype=np.intp)
        for row in range(1, len(self)):  # parents come first
            depth[row] = depth[self.parent[row]] + 1
        return tuple(np.flatnonzero(depth == level) for level in range(1, int(depth.max()) + 1))

    @cached_property
    def paths(self) -> npt.NDArray[np.intp]:
        """(U, D) for each user (in the order of `users`) the rows from below root down to him; −1 below him."""
        paths = np.full((len(self.users), max(len(self.levels), 1)), -1, dtype=np.intp)
        for at, user in enumerate(self.users):
            chain = [int(user)]
            while self.parent[chain[-1]] != 0:
                chain.append(int(self.parent[chain[-1]]))
            paths[at, : len(chain)] = chain[::-1]
        return paths

    @cached_property
    def users_first(self) -> npt.NDArray[np.intp]:
        """(U, D) of `paths`: siblings that tie stand in this order, users before accounts, then by row."""
        is_account = (self.paths >= 0) & ~self.is_user[self.paths]
        return self.paths + is_account * len(self)

    @cached_property
    def users(self) -> npt.NDArray[np.intp]:
        """(U,) rows of users."""
        return np.flatnonzero(self.is_user)


def associations_of_jobs(
    user: Category, account: Category, others: Iterable[Association] = ()
) -> tuple[Associations, npt.NDArray[np.intp]]:
    """A tree of equal shares for jobs of a trace, and (n,) each job's row in it.

    Accounts below root, users below their accounts, one share each. Where a trace has no account, all its users are in
    one; where it has no user, the account has one. `others` are associations without jobs.
    """
    pairs = np.stack((account.codes, user.codes), axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    names = [
        (account.names[a] if a >= 0 else "(none)", user.names[u] if u >= 0 else "(none)") for a, u in distinct.tolist()
    ]
    entries = [Association(name) for name in dict.fromkeys(a for a, _ in names)]
    tree = Associations.of([*entries, *(Association(a, u) for a, u in names), *others])
    rows = np.array([tree.row_of[pair] for pair in names], dtype=np.intp)
    return tree, rows[inverse.ravel()]


class Usage:
    """Who used how much lately: billing-seconds of each association, those of its children included, with decay."""

    def __init__(self, associations: Associations, weights: Weights, time: float = 0.0) -> None:
        """Nobody has used anything at `time`."""
        self.associations = associations
        self.time = time
        """Until when `raw` is decayed."""
        self.raw: Floats = np.zeros(len(associations))
        """(A,) sshare's RawUsage."""
        self._per_second = 1.0 - 0.693 / weights.half_life if weights.half_life > 0 else 1.0
        """What a second leaves: Slurm's first-order form of 2^(−1/half-life)."""

    def decay(self, to: float) -> None:
        """Let time pass until `to`; nothing happens where that is before `time`."""
        if to > self.time:
            self.raw *= self._per_second ** (to - self.time)
            self.time = to

    def charge(self, association: npt.NDArray[np.intp] | Codes, billing: Floats, seconds: Floats) -> None:
        """Add what jobs used since the last calculation.

        Args:
            association: (k,) rows of the jobs' users.
            billing: (k,) billing TRES, by default the CPUs (slurm.conf(5), TRESBillingWeights), times the UsageFactor
                of the QOS.
            seconds: (k,) for which each ran since. As Slurm does, the whole of a period is decayed by its length.
        """
        added = np.zeros(len(self.associations))
        np.add.at(added, association, billing * seconds * self._per_second**seconds)
        for level in reversed(self.associations.levels):
            np.add.at(added, self.associations.parent[level], added[level])
        self.raw += added

    def factors(self) -> Floats:
        """(A,) fair-share factor of each user, 0 … 1; 0 for accounts."""
        return fair_tree(self.associations, self.raw)


def fair_tree(tree: Associations, raw: Floats) -> Floats:
    """(A,) factors of Fair Tree (default since Slurm 19.05): users ranked by a walk down the tree; 0 for accounts.

    At each level siblings stand in the order of S/U, their share over what they used of their parent's usage, and
    everybody below the first goes before everybody below the second. The factor is the rank over the number of users, 1
    for the best. Ties: a sibling of equal S/U shares the rank of the one before him; of an account that is its first
    user; users stand before accounts. The documentation says that accounts of equal S/U are merged, but 22.05, 24.11
    and 26.05 do not (tests/recorded): they stay one after the other, here in the order of the rows.
    """
    paths, users = tree.paths, tree.users
    factor = np.zeros(len(tree))
    if not len(users):
        return factor
    above = raw[tree.parent]
    used = np.divide(raw, above, out=np.zeros(len(tree)), where=above > 0)
    level_fs = np.divide(tree.share, used, out=np.full(len(tree), np.inf), where=used > 0)
    level_fs[tree.share == 0] = 0.0
    way = np.where(paths >= 0, level_fs[paths], -1.0)
    keys: list[npt.NDArray[Any]] = []
    for level in reversed(range(paths.shape[1])):
        keys += [tree.users_first[:, level], -way[:, level]]
    order = np.lexsort(keys)
    way, paths = way[order], paths[order]
    # Where the ways of two neighbours part, they are siblings, or below siblings: these tie or do not.
    parting = (paths[1:] != paths[:-1]).argmax(axis=1)
    pair = np.arange(len(parting))
    place = np.arange(len(users))
    place[1:][way[1:][pair, parting] == way[:-1][pair, parting]] = 0
    place = np.maximum.accumulate(place)
    factor[users[order]] = (len(users) - place) / len(users)
    return factor
