"""What of a slurm.conf changes who starts when, and the simulator does not know: the list that its figures begin with.

What it knows is in docs/simulator.md. Values are those of ``scontrol show config`` and ``scontrol show partition``.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rltuned.core.notation import tres_name
from rltuned.slurm import controller, notation

if TYPE_CHECKING:  # needs NumPy
    from rltuned.core.tables import NodeTable, Partition

_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "PriorityType": frozenset({"priority/multifactor"}),
    "SelectType": frozenset({"select/cons_tres", "select/cons_res", "select/linear"}),
    "SchedulerType": frozenset({"sched/backfill", "sched/builtin"}),
    "PreemptType": frozenset({"preempt/none"}),
    "PriorityWeightAssoc": frozenset({"0"}),
    "PriorityWeightPartition": frozenset({"0"}),
    "PriorityWeightQOS": frozenset({"0"}),
    "PriorityUsageResetPeriod": frozenset({"NONE"}),
    "TopologyPlugin": frozenset({"topology/none", "topology/default", "topology/flat"}),
    "MCSPlugin": frozenset({"mcs/none"}),
    "Licenses": frozenset(),
}
"""Settings with their simulated values; one that is not set is as none of them."""
_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "SchedulerParameters": frozenset(
        {
            *("assoc_limit_stop", "bf_busy_nodes", "bf_licenses", "bf_max_job_array_resv"),
            *("bf_max_job_assoc", "bf_max_job_user_part", "bf_min_prio_reserve"),
            *("bf_one_resv_per_job", "bf_running_job_reserve", "bf_topopt_enable", "bf_window_linear"),
            *("pack_serial_at_end", "partition_job_depth", "reduce_completing_frag", "sched_max_job_start"),
        }
    ),
    "SelectTypeParameters": frozenset(
        {
            *("CR_LLN", "CR_PACK_NODES", "CR_ONE_TASK_PER_CORE", "CR_SOCKET", "CR_SOCKET_MEMORY"),
            *("CR_CPU", "CR_CORE"),  # memory, which these do not give out, is simulated as given out
        }
    ),
    "PriorityFlags": frozenset(
        {
            *("NO_FAIR_TREE", "DEPTH_OBLIVIOUS", "ACCRUE_ALWAYS", "INCR_ONLY", "MAX_TRES_GRES"),
            *("NO_NORMAL_ALL", "NO_NORMAL_TRES"),  # Slurm says ALL where it is any of them
        }
    ),
    "AccountingStorageEnforce": frozenset({"limits", "qos", "safe", "all"}),
    "SlurmctldParameters": frozenset({"enable_expedited_requeue"}),
}
"""Words of a list that are not simulated."""
_TRES: Final = ("cpu", "mem", "node", "gres/gpu")
"""TRES of which weights are simulated, and those of GPUs of a type."""
_OF_A_PARTITION: Final[Mapping[str, frozenset[str]]] = {
    "LLN": frozenset({"NO"}),
    "Exclusive": frozenset({"NO", "NODE"}),  # since 26.05; before that the next two
    "ExclusiveUser": frozenset({"NO"}),
    "ExclusiveTopo": frozenset({"NO"}),
    "Topology": frozenset(),  # since 25.05 each may have one of its own
    "MaxCPUsPerNode": notation.UNLIMITED,
    "MaxCPUsPerSocket": notation.UNLIMITED,
    "QoS": frozenset(),
}
BEGINNING: Final = "not simulated"  # of a sentence
_NAMED: Final = 3


def sentence(settings: Sequence[str], partitions: "Sequence[Partition]", nodes: "NodeTable") -> str:
    """What changes who starts when on a cluster, and the simulator does not know; "" where nothing does. `settings`:
    `ClusterFacts.not_simulated`.
    """
    where: dict[str, list[str]] = {}
    for part in partitions:
        for setting in part.not_simulated:
            where.setdefault(setting, []).append(part.name)
    found = list(settings)
    for setting, names in where.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        found.append(f"{setting} (partition {', '.join(names[:_NAMED])}{more})")
    if ((nodes.gpus > 0).sum(axis=1) > 1).any():
        found.append("which GPUs are free on nodes of several types")
    return f"{BEGINNING}, though it changes who starts when: {'; '.join(found)}" if found else ""


def _other_than(known: Mapping[str, frozenset[str]], settings: Mapping[str, str]) -> list[str]:
    values = {name: notation.text(settings.get(name, "")) for name in known}
    return [f"{name}={value}" for name, value in values.items() if value and value not in known[name]]


def of_config(config: Mapping[str, str]) -> list[str]:
    """Settings of the site, as slurm.conf spells them."""
    found = _other_than(_KNOWN, config)
    for name, strange in _WORDS.items():
        words = controller.parameters(config.get(name, ""))
        found += [f"{name}={word}={value}".rstrip("=") for word, value in words.items() if word in strange]
    return found + _weights("PriorityWeightTRES", config.get("PriorityWeightTRES", ""))


def of_partition(words: Mapping[str, str]) -> tuple[str, ...]:
    """Settings of a partition."""
    found = _other_than(_OF_A_PARTITION, words)
    if words.get("OverSubscribe", "").partition(":")[0] in {"YES", "FORCE"}:
        found.append(f"OverSubscribe={words['OverSubscribe']}")
    return (*found, *_weights("TRESBillingWeights", words.get("TRESBillingWeights", "")))


def _weights(name: str, value: str) -> list[str]:
    parts = [(part, tres_name(part.partition("=")[0])) for part in notation.text(value).split(",") if part]
    return [f"{name}={part}" for part, tres in parts if tres not in _TRES and not tres.startswith("gres/gpu:")]
