"""A site's slurm.conf as numbers: what of it a search may change, and the lines that say so."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rltuned.core.notation import compress
from rltuned.core.scheduler import SchedulerParameters
from rltuned.core.tables import Floats, NodeTable, Rows, owners
from rltuned.decide.rank.multifactor import USUAL, Weights
from rltuned.lab.evaluate.case import submitted
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.simulate.requests import requests
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import Backfill
from rltuned.simulate.workload.jobs import Workload

Values = Mapping[str, float]
"""Of slurm.conf, by the names of `Weights` and `SchedulerParameters`; `_WEIGHT_OF` and a GPU type: of its nodes; of a
floating reservation: `_RESERVED` and `_FOR`."""
_WEIGHT_OF: Final = "Weight of "
_RESERVED: Final = "nodes for short jobs"
_FOR: Final = "minutes of a short job"


@dataclass(frozen=True)
class Parameter:
    """A number of slurm.conf that may be changed."""

    name: str
    least: float  # of the search
    most: float
    says: str  # what it does, for the comment beside the line
    step: float = 1.0  # values are multiples of this
    off: bool = False  # whether 0 is one of them, too: what is less than ten times `least` means it

    @property
    def is_flag(self) -> bool:
        """Whether it is yes or no."""
        return self.most == 1.0

    @property
    def ends(self) -> tuple[float, float]:
        """Of the search's variable."""
        return (0.0, 1.0) if self.is_flag else (math.log10(self.least), math.log10(self.most))

    def variable(self, value: float) -> float:
        """Of a value."""
        return value if self.is_flag else math.log10(min(max(value, self.least), self.most))

    def value(self, variable: float, own: float) -> float:
        """Of a variable: two digits, or the site's `own` where it is all but that."""
        if self.is_flag:
            return float(round(variable))
        if abs(variable - self.variable(own)) < 0.03:
            return own
        raw = 10.0**variable
        if self.off and raw < 10.0 * self.least:
            return 0.0
        digits = 10.0 ** (math.floor(variable) - 1)
        return min(float(max(round(round(raw / digits) * digits / self.step), 1) * self.step), self.most)


_WEIGHTS: Final = {
    "age": "jobs that have waited longer go first",
    "fairshare": "accounts and users that have used less than their share go first",
    "job_size": "the size of a job",
    "gres/gpu": "jobs of many GPUs go first",
    "cpu": "jobs of many CPUs go first",
}
_RANGE: Final = 1e3
"""Weights are tried up to so many times the largest that the site has, and down to its inverse."""
_LARGEST_WEIGHT: Final = 4e8  # priorities are numbers of 32 bits
_OTHERS: Final = (
    Parameter("max_age", 3600.0, 60 * 86_400.0, "so long does a job's age grow", step=3600.0),
    Parameter("favor_small", 0.0, 1.0, "the weight of job size prefers small jobs"),
    Parameter("small_relative_to_time", 0.0, 1.0, "size is CPUs for each minute of the time limit"),
)
_PASSES: Final = {
    "bf_interval": (30.0, 600.0, "seconds from one backfill to the next"),
    "bf_window": (60.0, 20_160.0, "minutes that backfill plans ahead"),
    "bf_resolution": (60.0, 3600.0, "seconds of a step that backfill plans in"),
    "bf_max_job_test": (10.0, 1000.0, "jobs that backfill looks at"),
}
"""Least and most that are tried, or the site's own; the simulator does not know what a pass costs slurmctld."""
_LIMITS: Final = {
    "bf_max_job_user": (1.0, 500.0, "jobs of a user that backfill looks at, 0 all"),
    "bf_max_job_part": (1.0, 500.0, "jobs of a partition that backfill looks at, 0 all"),
    "bf_min_age_reserve": (60.0, 7 * 86_400.0, "seconds that a job waits before it keeps nodes from others"),
    "bf_job_part_count_reserve": (1.0, 500.0, "jobs of a partition that keep nodes from others, 0 all"),
}
"""Likewise, beside 0."""


@dataclass(frozen=True)
class SlurmConf:
    """A slurm.conf, and what of it may be changed."""

    settings: EvaluationSettings  # of the evaluation, with the weights and the scheduler of slurm.conf
    own: Values
    parameters: tuple[Parameter, ...]
    nodes: NodeTable

    @classmethod
    def of(cls, settings: EvaluationSettings, jobs: Workload, shape: ClusterShape) -> "SlurmConf":
        """What has an effect on these jobs. Of weights only the proportions have: the largest stays as it is."""
        weights = Weights.parse(settings.weights) if settings.weights else USUAL
        own = {name: float(value) for name, value in vars(weights).items() if name != "tres"} | dict(weights.tres)
        names = [name for name in _WEIGHTS if own.setdefault(name, 0.0) or name != "cpu"]
        if len(np.unique(owners(jobs.account, jobs.user).codes)) < 2:
            names.remove("fairshare")
        largest = max(names, key=own.__getitem__)
        unit = max(own[largest], 0.0) or 1e4
        ends = max(unit / _RANGE, 0.1) / 10.0, min(unit * _RANGE, _LARGEST_WEIGHT)
        searched = [name for name in names if name != largest or not own[name]]
        parameters = [Parameter(name, *ends, _WEIGHTS[name], off=True) for name in searched]
        parameters += _OTHERS
        scheduler = SchedulerParameters.parse(settings.scheduler)
        if scheduler.backfill and settings.backfill is Backfill.SLURM:
            for name, (least, most, says) in _PASSES.items():
                own[name] = getattr(scheduler, name) / (60.0 if name == "bf_window" else 1.0)
                parameters.append(Parameter(name, min(own[name], least), max(own[name], most), says))
            without_effect = _without_effect(jobs, shape)
            for name, (least, most, says) in _LIMITS.items():
                own[name] = float(getattr(scheduler, name))
                if name not in without_effect:
                    step = min(own[name] or least, least)
                    parameters.append(Parameter(name, step / 10.0, max(own[name], most), says, step, off=True))
        kinds = shape.nodes.gpu_types
        for kind in kinds if len(kinds) > 1 else ():
            rows = _of_type(shape.nodes, kind)
            there = set(shape.nodes.weights[rows].tolist())
            if len(there) != 1 or ((shape.nodes.gpus[rows] > 0).sum(axis=1) > 1).any():
                continue  # a node of two types has one weight
            own[_WEIGHT_OF + kind] = float(there.pop())
            if (jobs.gpu_type.codes < 0).any():
                parameters.append(Parameter(_WEIGHT_OF + kind, 1.0, 1e3, "jobs that name no type get the least first"))
        own |= {_RESERVED: 0.0, _FOR: 60.0}
        if spare := _spare_nodes(shape, submitted(jobs, shape)):
            parameters.append(Parameter(_RESERVED, 0.1, float(spare), "nodes where short jobs start only", off=True))
            parameters.append(Parameter(_FOR, 10.0, 1440.0, "minutes of their time limit", step=10.0))
        return cls(replace(settings, weights=_text(own, _is_weight)), own, tuple(parameters), shape.nodes)

    def promising(self) -> list[Values]:
        """Where a search should look, too: what Slurm has for small jobs, and for those of short limits."""
        unit = max(self.own[name] for name in _WEIGHTS if name in self.own) or 1e4
        return [
            {**self.own, "job_size": unit, "favor_small": 1.0},
            *({**self.own, "job_size": unit * times, "small_relative_to_time": 1.0} for times in (1.0, 30.0, 300.0)),
            *({**self.own, one.name: max(one.most // 5.0, 1.0)} for one in self.parameters if one.name == _RESERVED),
        ]

    def lines(self, values: Values) -> list[str]:
        """What of these values differs from the site's own, as slurm.conf(5) spells it, with what it does."""
        says = {one.name: self._says(one, values) for one in self.parameters if values[one.name] != self.own[one.name]}
        found = [f"{option}={_written(of, values[of])}  # {says[of]}" for of, option in _OPTIONS.items() if of in says]
        if tres := [says[name] for name in _TRES if name in says]:
            every = {name: value for name, value in values.items() if _is_weight(name) and name not in vars(USUAL)}
            text = ",".join(f"{_TRES.get(name, name)}={value:.15g}" for name, value in every.items() if value)
            found.append(f"PriorityWeightTRES={text}  # {'; '.join(tres)}")
        for name in [name for name in says if name.startswith(_WEIGHT_OF)]:
            rows = _of_type(self.nodes, name.removeprefix(_WEIGHT_OF)).tolist()
            names = compress(self.nodes.names[row] for row in rows)
            found.append(f"NodeName={names} ... Weight={values[name]:.15g}  # {says[name]}")
        if passes := [name for name in (*_PASSES, *_LIMITS) if name in says]:
            text = ",".join(f"{name}={values[name]:.15g}" for name in passes)
            found.append(f"SchedulerParameters=...,{text}  # {'; '.join(says[name] for name in passes)}")
        if count := int(values[_RESERVED]):
            names, minutes = compress(self.nodes.names[row] for row in _last(self.nodes, count)), f"{values[_FOR]:.0f}"
            found.append(
                f"scontrol create reservation ReservationName=short StartTime=now+{minutes}minutes Duration=UNLIMITED "
                f"Nodes={names} Users=root Flags=TIME_FLOAT,IGNORE_JOBS  # a command: there, no job of a time limit "
                f"above {minutes} minutes starts; nobody gets into the reservation"
            )
        unseen = [option for name, option in _UNSEEN.items() if self.own[name]]
        if found and unseen:
            found.append(f"# {' and '.join(unseen)} are not simulated: do they still decide what they should?")
        return found

    def _says(self, one: Parameter, values: Values) -> str:
        relative, small = values["small_relative_to_time"], values["favor_small"]
        if one.name == "small_relative_to_time":
            return f"beside your other flags; {one.says}" if relative else "your flags without SMALL_RELATIVE_TO_TIME"
        if one.is_flag:
            return one.says
        says = one.says
        if one.name == "job_size":
            short = " of a short time limit" if relative and not small else ""
            says = f"{'small' if small else 'large'} jobs{short} go first"
        return f"{says}; was {_written(one.name, self.own[one.name])}"

    def candidate(self, variables: Floats) -> dict[str, float]:
        """Of the search's variables."""
        found = {
            one.name: one.value(float(at), self.own[one.name])
            for one, at in zip(self.parameters, variables, strict=True)
        }
        if not found.get(_RESERVED):
            found[_FOR] = self.own[_FOR]
        return {**self.own, **found}

    def variables(self, values: Values) -> list[float]:
        """Of a candidate."""
        return [one.variable(values[one.name]) for one in self.parameters]


def with_values(settings: EvaluationSettings, values: Values) -> EvaluationSettings:
    """The settings with these values of slurm.conf. Raises ConfigError: values that cannot be."""
    others = [part for part in settings.scheduler.split(",") if part and part.partition("=")[0] not in values]
    passes = _text(values, lambda name: name.startswith("bf_"))
    return replace(settings, weights=_text(values, _is_weight), scheduler=",".join([*others, *filter(None, [passes])]))


def configured(shape: ClusterShape, values: Values) -> ClusterShape:
    """The cluster with the weights of nodes and the reservation that these values have."""
    found = shape.nodes.weights.copy()
    for name, value in values.items():
        if name.startswith(_WEIGHT_OF):
            found[_of_type(shape.nodes, name.removeprefix(_WEIGHT_OF))] = int(value)
    count = int(values.get(_RESERVED, 0.0))
    longest = _reserved(shape.nodes, count, 60.0 * values[_FOR]) if count else shape.longest
    return replace(shape, nodes=replace(shape.nodes, weight=found), longest=longest)


def _is_weight(name: str) -> bool:
    """Whether it is of `Weights`, not of the scheduler or of nodes."""
    return not name.startswith(("bf_", _WEIGHT_OF)) and name not in {_RESERVED, _FOR}


def _without_effect(jobs: Workload, shape: ClusterShape) -> set[str]:
    """Of `_LIMITS`: what is of a user where there is one, and of a partition likewise, is `bf_max_job_test` again."""
    few = {"bf_max_job_user": len(np.unique(jobs.user.codes)), "bf_max_job_part": len(shape.partitions)}
    return {name for name, count in few.items() if count < 2}


def _last(nodes: NodeTable, count: int) -> list[int]:
    """Rows of the last usable nodes that have GPUs."""
    rows: list[int] = np.flatnonzero(nodes.usable & (nodes.gpus.sum(axis=1) > 0)).tolist()
    return rows[max(len(rows) - count, 0) :]


def _reserved(nodes: NodeTable, count: int, seconds: float) -> Floats:
    """(M,) `ClusterShape.longest` where so many nodes take jobs of so long a limit at most."""
    found = np.full(len(nodes), np.inf)
    found[_last(nodes, count)] = seconds
    return found


def _spare_nodes(shape: ClusterShape, jobs: Workload) -> int:
    """Without how many nodes, half of those with GPUs at most, all jobs ask for the same and can run: what a simulation
    rejects, Slurm lets wait for ever.
    """
    limit = np.ones(len(jobs))
    whole = requests(shape, jobs, limit)
    can = ~np.isin(np.arange(len(jobs)), list(whole.rejected))

    def enough(count: int) -> bool:
        found = requests(replace(shape, longest=_reserved(shape.nodes, count, 0.0)), jobs, limit)
        columns = ((of.per_node[can], of.nodes[can], of.gpus[can], of.cpus[can]) for of in (found, whole))
        return found.rejected.keys() == whole.rejected.keys() and all(map(np.array_equal, *columns))

    low, high = 0, len(_last(shape.nodes, len(shape.nodes))) // 2
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if enough(middle) else (low, middle - 1)
    return low


def _of_type(nodes: NodeTable, kind: str) -> Rows:
    """Rows of the nodes that have GPUs of that type."""
    return np.flatnonzero(nodes.gpus[:, nodes.gpu_types.index(kind)] > 0)


def _text(values: Values, which: Callable[[str], bool]) -> str:
    return ",".join(f"{name}={value:.15g}" for name, value in values.items() if which(name))


_OPTIONS: Final = {
    "age": "PriorityWeightAge",
    "fairshare": "PriorityWeightFairshare",
    "job_size": "PriorityWeightJobSize",
    "max_age": "PriorityMaxAge",
    "favor_small": "PriorityFavorSmall",
    "small_relative_to_time": "PriorityFlags",
}
_TRES: Final = {"cpu": "CPU", "mem": "Mem", "gres/gpu": "GRES/gpu"}
_UNSEEN: Final = {"qos": "PriorityWeightQOS", "partition": "PriorityWeightPartition"}
"""No QOS and no partition of an evaluation has a priority."""


def _written(name: str, value: float) -> str:
    """As slurm.conf(5) spells it."""
    if name == "max_age":
        days, seconds = divmod(round(value), 86_400)
        return f"{days}-{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
    if name == "favor_small":
        return "YES" if value else "NO"
    if name == "small_relative_to_time":
        return "SMALL_RELATIVE_TO_TIME" if value else ""
    return f"{value:.15g}"
