"""Which nodes could ever run a job: the pool that its supply, demand and fragmentation are measured against."""

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from sys import maxsize
from typing import Final, NamedTuple

import numpy as np

from rltuned.core.errors import SlurmParseError
from rltuned.core.notation import MAX_HOSTS, expand
from rltuned.core.tables import Bools, Codes, Ints, JobTable, NodeTable, Rows, Snapshot

_WIDE: Final = 2**31
"""Each code range has at most about as many values, and the product of two still fits into 64 bits."""

MOST_REQUESTS: Final = 2048
"""Distinct requests of which `bounded_pools` looks up the nodes: each user can make up any number of node lists."""

MOST_SETS: Final = 256
"""Distinct node sets that `bounded_pools` tells apart: `decide.raising` compares each with each."""

MOST_NAMES: Final = 2**18
"""Names and characters of node lists that are read in a quarter of a second: Slurm keeps a list as its user writes it,
with names that come a hundred times."""


@dataclass(frozen=True)
class Pools:
    """Distinct sets of capable nodes. P pools, M nodes, n jobs."""

    pool_of: Codes  # (n,) pool of each job
    nodes: Bools  # (P, M) capable nodes, busy or not, usable or not
    gpu_type: Codes  # (P,) column of `NodeTable.gpus` that the pool's jobs ask for, −1 any
    rest: int = -1
    """The pool of the jobs whose nodes were not looked up: all nodes of all their partitions. −1: there are none.

    Their node list cannot be read or takes too long, or they are beyond the bounds of `bounded_pools`.
    """


def job_pools(snapshot: Snapshot, rows: Rows) -> Pools:
    """Pools of the jobs in `rows`: partition, features, node lists, GPU type and GPUs per node all considered.

    Jobs that agree in all of these share a pool, so the result is small however long the queue.
    """
    return _pools(snapshot, rows, maxsize, maxsize)


def bounded_pools(snapshot: Snapshot, rows: Rows) -> Pools:
    """As `job_pools`, but those with the rarest requests and node sets get no own pool: few users, then few jobs."""
    return _pools(snapshot, rows, MOST_REQUESTS, MOST_SETS)


def _pools(snapshot: Snapshot, rows: Rows, most_requests: int, most_sets: int) -> Pools:
    asked = _requests(snapshot, rows)
    order = _commonest(snapshot.jobs, rows, asked.of)[:most_requests]
    named = _named(snapshot, rows[asked.first[order]])
    common = np.zeros(len(asked.first), dtype=np.bool_)
    common[[at for at in order.tolist() if named.keys() >= _lists(snapshot.jobs, int(rows[asked.first[at]]))]] = True
    kept = np.flatnonzero(common)
    masks = _capable(snapshot, rows[asked.first[kept]], asked.gpu_type[kept], asked.per_node[kept], named)
    if len(kept) > most_sets:
        pool_of = np.full(len(common), len(kept), dtype=np.intp)
        pool_of[kept] = np.arange(len(kept))
        # With a partition that is down, equal sets differ in what can be had of them.
        sets = _distinct_rows(masks) * (len(snapshot.jobs.partition.names) + 1)
        first = rows[asked.first[kept]]
        partly_down = snapshot.by_partitions(
            first, lambda parts: any(part and not part.up for part in parts), none=False
        )
        sets += np.where(partly_down, snapshot.jobs.partition.codes[first] + 1, 0)
        number = np.append(np.unique(sets, return_inverse=True)[1], -1)[pool_of[asked.of]]
        those = np.flatnonzero(number >= 0)
        few = np.zeros(int(number.max(initial=-1)) + 2, dtype=np.bool_)
        few[_commonest(snapshot.jobs, rows[those], number[those])[:most_sets]] = True
        common[asked.of] = few[number]
        still = common[kept]
        kept, masks = kept[still], masks[still]
    if len(kept) == len(common):
        return Pools(asked.of.astype(np.int32), masks, asked.gpu_type.astype(np.int32))
    pool_of = np.full(len(common), len(kept), dtype=np.int32)
    pool_of[kept] = np.arange(len(kept))
    pools = pool_of[asked.of].astype(np.int32)
    of_rest = snapshot.jobs.partition[rows[pools == len(kept)]]
    rest = snapshot.nodes_of(part for names in set(of_rest.texts()) for part in snapshot.partitions_of(names))
    masks = np.concatenate((masks, rest[None]))
    return Pools(pools, masks, np.append(asked.gpu_type[kept], -1).astype(np.int32), len(kept))


def _commonest(jobs: JobTable, rows: Rows, of: Rows) -> Rows:
    """The groups (`of`, from 0) by how common they are: of most users, then most jobs, then the oldest first."""
    size = int(of.max(initial=-1)) + 1
    span = len(jobs.user.names) + 1
    users = np.bincount(np.unique(of.astype(np.int64) * span + jobs.user.codes[rows] + 1) // span, minlength=size)
    oldest = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(oldest, of, jobs.job_id[rows])
    return np.lexsort((oldest, -np.bincount(of, minlength=size), -users))


def _lists(jobs: JobTable, row: int) -> set[str]:
    return {jobs.req_nodes.value(row), jobs.exc_nodes.value(row)} - {""}


def _named(snapshot: Snapshot, rows: Rows) -> dict[str, Bools]:
    """(M,) nodes that each node list of these jobs names: of each user one, then of each another one. Without what
    cannot be read, names far more than there are nodes, or is beyond `MOST_NAMES` in all. Unknown names name none.
    """
    jobs, nodes = snapshot.jobs, snapshot.nodes
    masks: dict[str, Bools] = {}
    left, most = MOST_NAMES, min(2 * len(nodes) + 64, MAX_HOSTS)
    listed = np.flatnonzero((jobs.req_nodes.codes[rows] >= 0) | (jobs.exc_nodes.codes[rows] >= 0))
    turns: dict[str, int] = {}
    of_user: Counter[int] = Counter()
    for row in rows[listed].tolist():
        for text in sorted(text for text in _lists(jobs, row) if text not in turns):
            user = int(jobs.user.codes[row])
            turns[text] = of_user[user]
            of_user[user] += 1
    for text in sorted(turns, key=turns.__getitem__):
        if len(text) > left:
            continue
        left -= len(text)
        try:
            names = expand(text, min(most, left))
        except SlurmParseError:
            left -= min(most, left)
            continue
        left -= len(names)
        masks[text] = np.zeros(len(nodes), dtype=np.bool_)
        masks[text][[nodes.row_of[name] for name in names if name in nodes.row_of]] = True
    return masks


def _distinct_rows(rows: Bools) -> Rows:
    """(n,) which of the distinct rows of a (n, m) matrix each is: a fast `np.unique` along an axis."""
    bits = np.ascontiguousarray(np.packbits(rows, axis=1))
    kind = np.dtype((np.void, max(bits.shape[1], 1)))
    whole = bits.view(kind).reshape(-1) if bits.size else np.zeros(len(bits), dtype=kind)
    return np.unique(whole, return_inverse=True)[1].astype(np.intp)


class _Requests(NamedTuple):
    """The R distinct requests of n jobs."""

    of: Rows
    first: Rows  # (R,) position of a job that has it
    gpu_type: Ints  # (R,) column of `NodeTable.gpus`; their number: a type that no node has; −1: any
    per_node: Codes  # (R,) least GPUs that a node must have


def _requests(snapshot: Snapshot, rows: Rows) -> _Requests:
    jobs, nodes = snapshot.jobs, snapshot.nodes
    types = {name: column for column, name in enumerate(nodes.gpu_types)}
    wanted_type = jobs.gpu_type[rows].mapped(lambda name: types.get(name, len(types)), none=-1, kind=np.int64)
    gpus = jobs.gpus[rows]
    # Least GPUs that one node must have: the per-node request, else one if the job uses GPUs at all.
    per_node = np.where(gpus > 0, np.maximum(jobs.gpus_per_node[rows], 1), 0)
    # Types that no node has are apart: a name may stand for several.
    asked = np.where(wanted_type == len(types), len(types) + jobs.gpu_type.codes[rows], wanted_type)
    # One integer per distinct request: mixed radix over the code ranges.
    key, span = np.zeros(len(rows), dtype=np.int64), 1
    for codes, size in (
        (jobs.partition.codes[rows].astype(np.int64) + 1, len(jobs.partition.names) + 1),
        (jobs.features.codes[rows].astype(np.int64) + 1, len(jobs.features.names) + 1),
        (jobs.req_nodes.codes[rows].astype(np.int64) + 1, len(jobs.req_nodes.names) + 1),
        (jobs.exc_nodes.codes[rows].astype(np.int64) + 1, len(jobs.exc_nodes.names) + 1),
        (asked + 1, len(types) + len(jobs.gpu_type.names) + 1),
        (per_node.astype(np.int64), int(per_node.max(initial=0)) + 1),
    ):
        if span > _WIDE:  # thousands of distinct lists: renumber, or the next factor would leave 64 bits
            key, span = np.unique(key, return_inverse=True)[1].astype(np.int64), len(rows)
        if size > 1:
            key, span = key * size + codes, span * size
    _, first, of = np.unique(key, return_index=True, return_inverse=True)
    return _Requests(of.astype(np.intp), first, wanted_type[first], per_node[first])


def _capable(
    snapshot: Snapshot,
    rows: Rows,
    gpu_type: Ints,
    per_node: Codes,
    named: Mapping[str, Bools],
) -> Bools:
    """(P, M) nodes that could run the jobs in `rows`, one of each kind; `named`: as of `_named`."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    codes, of_code = np.unique(jobs.partition.codes[rows], return_inverse=True)
    names = (*jobs.partition.names, "")
    of_partition = [snapshot.nodes_of(snapshot.partitions_of(names[code])) for code in codes]
    masks = np.array(of_partition, dtype=np.bool_).reshape(len(codes), len(nodes))[of_code]
    # By type, then a type that no node has, then (as −1) any type.
    offered = np.zeros((len(nodes.gpu_types) + 2, len(nodes)), dtype=np.int32)
    offered[:-2] = nodes.gpus.T
    offered[-1] = nodes.gpus.sum(axis=1)
    masks &= (offered[gpu_type] >= per_node[:, None]) | _of_several_types(snapshot, rows, gpu_type, per_node)
    features, wanted, excluded = (column.codes[rows] for column in (jobs.features, jobs.req_nodes, jobs.exc_nodes))
    satisfying = {code: _satisfying(nodes, jobs.features.names[code]) for code in set(features.tolist()) if code >= 0}
    for pool in np.flatnonzero((features >= 0) | (wanted >= 0) | (excluded >= 0)):
        row = int(rows[pool])
        if features[pool] >= 0:
            masks[pool] &= satisfying[int(features[pool])]
        if text := jobs.req_nodes.value(row):
            masks[pool] &= named[text]
        if text := jobs.exc_nodes.value(row):
            masks[pool] &= ~named[text]
    return masks


def _satisfying(nodes: NodeTable, expression: str) -> Bools:
    """(M,) nodes whose features satisfy a constraint: each distinct set is asked once."""
    test, sets = compile_constraint(expression), nodes.feature_sets
    return np.array([test(features) for features in sets.sets], dtype=np.bool_)[sets.of]


def _of_several_types(snapshot: Snapshot, rows: Rows, gpu_type: Ints, per_node: Codes) -> Bools:
    """(P, M) nodes for jobs that ask for several GPU types: all of them where it is per node, else one of them."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    found = np.zeros((len(rows), len(nodes)), dtype=np.bool_)
    total = nodes.gpus.sum(axis=1)
    for pool in np.flatnonzero(gpu_type == len(nodes.gpu_types)).tolist():
        names = jobs.gpu_type.value(int(rows[pool])).split(",")
        columns = [nodes.gpu_types.index(name) for name in names if name in nodes.gpu_types]
        if len(names) < 2 or len(columns) < len(names):
            continue
        has = nodes.gpus[:, columns] > 0
        here = has.all(axis=1) if jobs.gpus_per_node[rows[pool]] > 0 else has.any(axis=1)
        found[pool] = here & (total >= per_node[pool])
    return found


# --- feature constraints (sbatch(1) --constraint) ---------------------------------------------------------------------

_TOKEN: Final = re.compile(r"\s*([&|()\[\]!]|\*\s*\d+|[^&|()\[\]!*\s]+)")

Test = Callable[[frozenset[str]], bool]

MOST_NESTED: Final = 32  # brackets within brackets: each is a call within a call


def compile_constraint(expression: str) -> Test:
    """A test of one node's features. ``&`` and ``|`` are applied left to right, as slurmctld does.

    Counts (``a*2``) and matching groups (``[a&b]``, ``[r1|r2]``) spread over several nodes: for one node they mean "has
    one of these". What cannot be understood accepts every node: Slurm has the last word on where a job runs.
    """
    symbols = deque(_TOKEN.findall(expression))
    if "".join(symbols).replace(" ", "") == re.sub(r"\s", "", expression):
        with suppress(_UnclearError):
            terms = _terms(symbols, 0, any_of="*" in expression and "[" not in expression)
            if not symbols:
                return lambda features: _hold(terms, features)
    return lambda _features: True


class _UnclearError(Exception):
    """The expression is not of the known grammar."""


class _Term(NamedTuple):
    conjunction: bool  # with what stands before it
    negated: bool
    operand: "str | list[_Term]"


def _terms(symbols: deque[str], depth: int, *, any_of: bool) -> list[_Term]:
    """The terms that the symbols begin with, which are taken away."""
    if depth > MOST_NESTED:
        raise _UnclearError
    terms: list[_Term] = []
    conjunction = False
    while True:
        negated = False
        while symbols and symbols[0] == "!":
            negated = not negated
            symbols.popleft()
        if not symbols or symbols[0][0] in "&|)]*":
            raise _UnclearError
        operand: str | list[_Term] = symbols.popleft()
        if operand in {"(", "["}:
            end = ")" if operand == "(" else "]"
            operand = _terms(symbols, depth + 1, any_of=any_of or end == "]")
            if not symbols or symbols.popleft() != end:
                raise _UnclearError
        if symbols and symbols[0].startswith("*"):
            symbols.popleft()
        terms.append(_Term(conjunction, negated, operand))
        if not symbols or symbols[0] not in {"&", "|"}:
            return terms
        conjunction = symbols.popleft() == "&" and not any_of


def _hold(terms: list[_Term], features: frozenset[str]) -> bool:
    found = False
    for conjunction, negated, operand in terms:
        own = negated != (operand in features if isinstance(operand, str) else _hold(operand, features))
        found = (found and own) if conjunction else (found or own)
    return found
