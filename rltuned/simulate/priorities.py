"""Priorities of a simulated queue by slurmctld's priority/multifactor: `decide.rank.multifactor`, and the usage."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from rltuned.core.tables import Codes, Floats, Ints, NodeTable, Rows
from rltuned.decide.rank.multifactor import (
    USUAL,
    Association,
    Machine,
    PendingJobs,
    Usage,
    Weights,
    associations_of_jobs,
    changing_term,
    fixed_terms,
    normalised,
)
from rltuned.simulate.engine import Simulation

_STEP: Final = 3600.0
"""Seconds in which usage of before the first calculation is added up."""
NO_QOS: Final[Mapping[str, float]] = MappingProxyType({})


def _total(table: NodeTable, rows: Codes, name: str) -> float:
    """What these nodes have of a TRES; 0 of one that is not simulated."""
    if name.startswith("gres/gpu:"):
        kind = name.removeprefix("gres/gpu:")
        return float(table.gpus[rows, table.gpu_types.index(kind)].sum()) if kind in table.gpu_types else 0.0
    columns: dict[str, Any] = {"cpu": table.cpus, "mem": table.mem, "node": np.ones(len(table)), "gres/gpu": table.gpus}
    return float(columns[name][rows].sum()) if name in columns else 0.0


class MultifactorPriorities:
    """Priorities of one simulation's jobs, without site factor and nice, and the fair share that goes with them.

    Partitions of a `ClusterShape` have no priorities of their own, so that factor is 0.
    """

    def __init__(
        self,
        simulation: Simulation,
        weights: Weights = USUAL,
        qos: Mapping[str, float] = NO_QOS,
        others: Sequence[Association] = (),
    ) -> None:
        """Args:
        simulation: whose jobs.
        weights: of slurm.conf.
        qos: priority of each QOS, by name; 0 for one that is not named.
        others: accounts and users that submit nothing. They take places in the fair share.
        """
        jobs, asked, shape = simulation.jobs, simulation.asked, simulation.shape
        n, asked_nodes = len(jobs), np.maximum(asked.nodes, 1)
        self.weights = weights
        cpus = np.where(jobs.cpus > 0, jobs.cpus, np.maximum(jobs.gpus, 1)).astype(np.float64)
        machine = Machine(max(len(shape.nodes), 1), max(int(shape.nodes.cpus.sum()), 1))
        tree, association = associations_of_jobs(jobs.user, jobs.account, others)
        self._until = min(simulation.usage_since, simulation.now)
        self.usage = Usage(tree, weights, self._until)
        self._association = association
        part, types = np.maximum(asked.partition, 0), np.array(jobs.gpu_type.texts())

        def wanted(name: str) -> Floats:
            """(n,) of a TRES; 0 of one that is not simulated."""
            if name.startswith("gres/gpu:"):
                return np.where(types == name.removeprefix("gres/gpu:"), jobs.gpus, 0).astype(np.float64)
            columns = {"cpu": cpus, "mem": jobs.mem, "node": asked_nodes, "gres/gpu": jobs.gpus}
            return np.asarray(columns.get(name, np.zeros(n)), dtype=np.float64)

        self._billing = cpus
        for at, partition in enumerate(shape.partitions):
            if partition.billing is not None:
                terms = np.array([weight * wanted(name) for name, weight in partition.billing.items()])
                billed = np.maximum(terms.max(axis=0), 0.0) if weights.max_tres else terms.sum(axis=0)
                self._billing = np.where(part == at, billed, self._billing)
        tres = []
        for name in weights.tres:
            total = np.array([_total(shape.nodes, partition.nodes, name) for partition in shape.partitions])[part]
            tres.append(np.divide(wanted(name), total, out=np.zeros(n), where=total > 0))
        factor = dict(zip(qos, normalised(np.array(list(qos.values()))).tolist(), strict=True))
        pending = PendingJobs.of(
            n,
            nodes=asked_nodes,
            cpus=cpus,
            # The highest priority of all QOS is 1, whether a job has it or not.
            qos=np.array([factor.get(name, 0.0) for name in jobs.qos.texts()], dtype=np.float64),
            tres=np.stack(tres, axis=1) if tres else np.zeros((n, 0)),
            time_limit=simulation.estimates.time_limit,
        )
        self._fixed = fixed_terms(weights, machine, pending)
        while self._until + _STEP < simulation.now:
            self._charge(simulation, self._until + _STEP)
        self._charge(simulation, simulation.now)
        self._fairshare: Floats = self.usage.factors()

    def sums(self, simulation: Simulation, rows: Rows) -> Ints:
        """(n,) of these jobs now, fractions dropped; the fair share is that of the last calculation."""
        fairshare = self._fairshare[self._association[rows]]
        found = changing_term(self.weights, simulation.now, simulation.submitted[rows], fairshare)
        for term in self._fixed:
            found += term[rows]
        return np.asarray(np.floor(found), dtype=np.int64)

    def passed(self, simulation: Simulation) -> None:
        """Charge what ran since the last call, let all usage decay, and rank the users again."""
        if self.weights.fairshare:
            self._charge(simulation, simulation.now)
            self._fairshare = self.usage.factors()

    def _charge(self, simulation: Simulation, until: float) -> None:
        """What ran until then, since the last time."""
        seconds = np.minimum(simulation.end, until) - np.maximum(simulation.start, self._until)
        ran = np.flatnonzero(seconds > 0.0)  # NaN: not started
        self.usage.decay(until)
        if len(ran):
            self.usage.charge(self._association[ran], self._billing[ran] * simulation.grown[ran], seconds[ran])
        self._until = until
