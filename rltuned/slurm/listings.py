"""Nodes and partitions as ``scontrol --oneliner show`` lists them: one line of ``key=value`` words for each."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from rltuned.core.changes import OverSubscribe
from rltuned.core.errors import SlurmParseError
from rltuned.core.notation import expand
from rltuned.core.tables import NO_ROWS, Partition
from rltuned.core.unread import RowKind, Skipped
from rltuned.slurm.not_simulated import of_partition
from rltuned.slurm.notation import (
    UNLIMITED,
    bad,
    count,
    gres,
    integer,
    memory,
    shared_gpus,
    slurm_seconds,
    text,
    tres,
    tres_weights,
)
from rltuned.slurm.separated import refuse_unknown

_T = TypeVar("_T")
_NODE: Final = "NodeName"
_PARTITION: Final = "PartitionName"

_STATE_SUFFIX: Final = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_USABLE_BASE: Final = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_ASLEEP: Final = frozenset({"POWERED_DOWN", "POWERING_UP", "POWER_UP"})
"""Power saving: Slurm wakes the node for a job (measured on all releases), but not one that is POWERING_DOWN."""
_TAKES_JOBS: Final = _ASLEEP | {
    *("PLANNED", "COMPLETING", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "DYNAMIC", "RESUME", "UNDRAIN"),
    "REBOOT_REQUESTED",  # until it is idle: select/cons_tres only takes others first; with ASAP it has DRAIN, too
}
"""Flags of a node that may start jobs, by what slurmctld does with each (node_mgr.c, read_config.c, cons_tres)."""
_COMES_BACK: Final = _TAKES_JOBS | {
    *("RESERVED", "MAINT", "MAINTENANCE"),  # reservation.c: of each node of which somebody has reserved anything
    *("BLOCKED", "POWER_DOWN", "POWER_DRAIN", "POWERING_DOWN"),
}
"""Flags of a node that counts in a replay: those, and those of one that starts no jobs for a while. Each other flag
(DRAIN, FAIL, NOT_RESPONDING, INVALID_REG, REBOOT_ISSUED, one that is not known) stands for a node that does neither."""
_STATE = re.compile(r"([A-Za-z_]{1,32})([*~#!%$@^\-]{0,4})((?:\+[A-Za-z_]{1,32}[*~#!%$@^\-]{0,4}){0,16})\Z", re.ASCII)
_FLAG = re.compile(r"\+([A-Za-z_]+)([*~#!%$@^\-]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's base state and flags, e.g. IDLE and {DRAIN}."""

    base: str
    flags: frozenset[str]

    @property
    def usable(self) -> bool:
        """Whether the node may take a new job. Unknown states and flags count as not usable."""
        return self._has_only(_TAKES_JOBS)

    @property
    def reserved(self) -> bool:
        """Whether a reservation, which may be of a part of the node, is all that makes it not usable."""
        return "RESERVED" in self.flags and self._has_only(_TAKES_JOBS | {"RESERVED"})

    @property
    def counts(self) -> bool:
        """Whether the node is there in a replay."""
        return self._has_only(_COMES_BACK)

    def _has_only(self, flags: frozenset[str]) -> bool:
        # A node that comes up does not respond yet.
        own = self.flags - {"NOT_RESPONDING"} if "POWERING_UP" in self.flags else self.flags
        return self.base in _USABLE_BASE and own <= flags

    @property
    def asleep(self) -> bool:
        """Whether a job that starts on the node has to wait until it is up."""
        return not self.flags.isdisjoint(_ASLEEP)


def node_state(value: str) -> NodeState:
    """A node state as scontrol or sinfo print it: ``IDLE+DRAIN``, ``mixed-``, ``DOWN*+DRAIN``, ``inval``."""
    match = _STATE.match(value)
    if match is None:
        raise bad("node state", value)
    base, suffixes, rest = match.groups()
    flags = {_STATE_SUFFIX[mark] for mark in suffixes}
    for flag, marks in _FLAG.findall(rest):
        flags.add(flag.upper())
        flags.update(_STATE_SUFFIX[mark] for mark in marks)
    return NodeState(base.upper(), frozenset(flags))


_FREE_TEXT: Final = (" Reason=", " Comment=", " Extra=")
"""What administrators write, behind all that is needed (measured on all releases): the line is cut there."""


@dataclass(frozen=True, slots=True)
class Node:
    """One line of ``scontrol -d -o show node``."""

    name: str
    state: NodeState
    cpus: int  # that jobs may use (CPUEfctv)
    cpus_alloc: int
    mem: float  # MiB that jobs may use: RealMemory less MemSpecLimit
    mem_alloc: float
    tmp: float
    features: frozenset[str]
    gpus: Mapping[str, int]  # by type, "gpu" where none is given
    gpus_alloc: Mapping[str, int]
    weight: int = 1


class PartitionLine(NamedTuple):
    """One line of ``scontrol -o show partition``."""

    partition: Partition  # without its nodes
    nodes: list[str]  # names
    understood: bool = True  # whether anything but the name, and perhaps the nodes, is known


def _tokens(line: str) -> dict[str, str]:
    """``key=value`` words of a line; the first of a key counts; words without ``=`` (the OS) are skipped."""
    found: dict[str, str] = {}
    for word in line.split(" "):
        key, equals, value = word.partition("=")
        if equals:
            found.setdefault(key, value)
    return found


def _required(words: Mapping[str, str], key: str) -> str:
    if key not in words:
        raise SlurmParseError(f"no {key}=")
    return words[key]


def nodes(answer: str) -> tuple[list[Node], list[Skipped]]:
    """All nodes of ``scontrol --details --oneliner show node``, and the lines that cannot be understood.

    A node of such a line, or of two lines, is there without anything that a job could use.
    """
    gpus: dict[str, dict[str, int]] = {}  # what each text of Gres or GresUsed means, of which a cluster has few
    return _listed(
        answer, RowKind.NODE, _node_words, lambda words: _node(words, gpus), lambda words: unusable_node(words[_NODE])
    )


def partitions(answer: str) -> tuple[list[PartitionLine], list[Skipped]]:
    """All partitions of ``scontrol --oneliner show partition``, and the lines that cannot be understood.

    A partition of such a line, or of two lines, is there as one that is not up, of a tier that is not known (−1).
    """
    return _listed(
        answer,
        RowKind.PARTITION,
        _partition_words,
        _partition,
        lambda words: closed_partition(words[_PARTITION], text(words.get("Nodes", ""))),
    )


def _listed(
    answer: str,
    kind: RowKind,
    words_of: Callable[[str], tuple[dict[str, str], bool]],
    reads: Callable[[dict[str, str]], _T],
    without: Callable[[dict[str, str]], _T],
) -> tuple[list[_T], list[Skipped]]:
    """What `reads`, else `without`, makes of the words of each line; `words_of` also tells whether a text may go on."""
    command, key = f"scontrol show {kind}", _NODE if kind is RowKind.NODE else _PARTITION
    if not answer.endswith("\n"):
        raise SlurmParseError(f"{command}: the answer is {'cut short' if answer else 'empty'}")
    found: dict[str, _T] = {}
    strange: dict[str, Skipped] = {}
    nameless: list[Skipped] = []
    continues = False
    for number, line in enumerate(answer.split("\n")[:-1], start=1):
        where = f"{command}, line {number}"
        if not line.startswith(f"{key}="):
            if line.strip() and not continues:
                nameless.append(Skipped(kind, "", f"{where}: not a {kind}: {line[:60]!r}"))
            continue
        words, continues = words_of(line)
        name = words[key]
        if not name:
            nameless.append(Skipped(kind, "", f"{where}: a {kind} without a name"))
            continue
        reason = ""
        try:
            item = reads(words)
        except SlurmParseError as error:
            item, reason = without(words), f"{where}: {error}"
        if name in found:
            # Which of them is true nobody knows: a comment with a newline may imitate a node.
            item, reason = without({key: name}), f"{where}: {kind} {name[:64]!r} appears twice"
        found[name] = item
        if reason:
            strange.setdefault(name, Skipped(kind, name, reason))
    skipped = [*strange.values(), *nameless]
    if not found:
        raise SlurmParseError(skipped[0].reason if skipped else f"{command}: no {kind}s in the answer")
    refuse_unknown([row.reason for row in skipped], len(found) + len(nameless))
    return list(found.values()), skipped


def _node_words(line: str) -> tuple[dict[str, str], bool]:
    ends = [at for mark in _FREE_TEXT if (at := line.find(mark)) >= 0]
    return _tokens(line[: min(ends)] if ends else line), bool(ends)


def _partition_words(line: str) -> tuple[dict[str, str], bool]:
    # The name may hold anything, blanks too, even that key: the last one counts.
    head, key, rest = line.rpartition(" AllowGroups=")
    words = {**_tokens(key + rest), _PARTITION: head.removeprefix(f"{_PARTITION}=")} if key else _tokens(line)
    return words, False


def unusable_node(name: str) -> Node:
    """A node of which nothing but the name is known."""
    return Node(name, NodeState("UNKNOWN", frozenset()), 0, 0, 0.0, 0.0, 0.0, frozenset(), {}, {})


_NODE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,256}\Z", re.ASCII)


def is_node_name(value: str) -> bool:
    """Whether a node can have that name (slurm.conf(5) NodeName)."""
    return _NODE_NAME.match(value) is not None


def _node(words: Mapping[str, str], gpus: dict[str, dict[str, int]]) -> Node:
    name = words[_NODE]
    if not is_node_name(name):
        raise bad("node name", name)
    total = count(_required(words, "CPUTot"))
    configured = _by_type(words.get("Gres", ""), gpus)
    used = _by_type(words.get("GresUsed", ""), gpus)
    allocated = tres(_required(words, "AllocTRES"))
    if "GresUsed" not in words and allocated.gpus:
        used = dict(allocated.gpu_types) or {"gpu": allocated.gpus}
    parts = shared_gpus(words.get("GresUsed", ""))
    used = used | {kind: used.get(kind, 0) + number for kind, number in parts.items()}
    reserved = _or_zero(memory(words.get("MemSpecLimit", "0")))
    features = text(words.get("ActiveFeatures", ""))
    return Node(
        name=name,
        state=node_state(_required(words, "State")),
        cpus=count(words.get("CPUEfctv", str(total))),
        cpus_alloc=count(_required(words, "CPUAlloc")),
        mem=max(_or_zero(memory(_required(words, "RealMemory"))) - reserved, 0.0),
        mem_alloc=_or_zero(memory(_required(words, "AllocMem"))),
        tmp=_or_zero(memory(words.get("TmpDisk", "0"))),
        features=frozenset(part for part in features.split(",") if part),
        gpus=configured,
        gpus_alloc=_as_configured(used, configured),
        weight=count(words.get("Weight", "1")),
    )


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _by_type(value: str, known: dict[str, dict[str, int]]) -> dict[str, int]:
    if value not in known:
        found: dict[str, int] = {}
        for kind, number in gres(value).items():
            found[kind or "gpu"] = found.get(kind or "gpu", 0) + number
        known[value] = found
    return known[value]


def _as_configured(used: dict[str, int], configured: Mapping[str, int]) -> dict[str, int]:
    """GPUs in use by the types that the node is configured with. Those of other types are in use all the same."""
    if used.keys() <= configured.keys():
        return used
    found = {kind: number for kind, number in used.items() if kind in configured}
    rest = sum(used.values()) - sum(found.values())
    for kind, most in configured.items():
        taken = min(rest, max(most - found.get(kind, 0), 0))
        found[kind] = found.get(kind, 0) + taken
        rest -= taken
    return found


def closed_partition(name: str, listed: str) -> PartitionLine:
    """A partition of which nothing but the name, and perhaps the list of its nodes, is known."""
    try:
        nodes = expand(listed)
    except SlurmParseError:
        nodes = []
    return PartitionLine(Partition(name, NO_ROWS, up=False, priority_tier=-1), nodes, understood=False)


def _partition(words: Mapping[str, str]) -> PartitionLine:
    mode, _, times = _required(words, "OverSubscribe").partition(":")
    if words.get("Exclusive") == "NODE":
        mode = "EXCLUSIVE"
    if mode not in {"NO", "YES", "FORCE", "EXCLUSIVE"}:
        raise bad("OverSubscribe", mode)
    most = _required(words, "MaxNodes")
    limit = slurm_seconds(_required(words, "MaxTime"))
    partition = Partition(
        name=words[_PARTITION],
        nodes=NO_ROWS,
        up=_required(words, "State") in {"UP", "DRAIN"},  # DRAIN takes no new jobs, but starts those that it has
        priority_tier=integer(_required(words, "PriorityTier")),
        oversubscribe=OverSubscribe(mode),
        oversubscribe_count=max(count(times), 1),
        max_time=math.inf if math.isnan(limit) else limit,
        max_nodes=math.inf if most in UNLIMITED else float(count(most)),
        default=words.get("Default") == "YES",
        billing=tres_weights(words.get("TRESBillingWeights", "")) or None,
        not_simulated=of_partition(words),
    )
    return PartitionLine(partition, expand(text(_required(words, "Nodes"))))
