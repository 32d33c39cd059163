"""Priorities of a simulated queue by slurmctld's priority/multifactor: `rltuned.policy.multifactor`, and the usage."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from rltuned.cluster.tables import Floats, Ints, Rows
from rltuned.policy.multifactor import (
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

NO_QOS: Final[Mapping[str, float]] = MappingProxyType({})


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
        n = len(jobs)
        self.weights = weights
        cpus = np.where(jobs.cpus > 0, jobs.cpus, np.maximum(jobs.gpus, 1)).astype(np.float64)
        machine = Machine(max(len(shape.nodes), 1), max(int(shape.nodes.cpus.sum()), 1))
        tree, association = associations_of_jobs(jobs.user, jobs.account, others)
        self._usage = Usage(tree, weights, simulation.now)
        self._fairshare: Floats = self._usage.factors()
        self._association = association
        self._billing = cpus
        total = np.array(
            [
                [shape.nodes.cpus[p.nodes].sum(), shape.nodes.mem[p.nodes].sum(), shape.nodes.gpus[p.nodes].sum()]
                for p in shape.partitions
            ],
            dtype=np.float64,
        )
        of = total[np.maximum(asked.partition, 0)]
        wanted = np.stack((cpus, jobs.mem, jobs.gpus.astype(np.float64)), axis=1)
        share = np.divide(wanted, of, out=np.zeros((n, 3)), where=of > 0)
        column = {"cpu": 0, "mem": 1, "gres/gpu": 2}
        tres = [share[:, column[name]] if name in column else np.zeros(n) for name in weights.tres]
        pending = PendingJobs.of(
            n,
            nodes=np.maximum(asked.nodes, 1),
            cpus=cpus,
            qos=self._qos(simulation, qos),
            tres=np.stack(tres, axis=1) if tres else np.zeros((n, 0)),
            time_limit=simulation.estimates.time_limit,
        )
        self._fixed = fixed_terms(weights, machine, pending)
        self._until = simulation.now

    @staticmethod
    def _qos(simulation: Simulation, priority: Mapping[str, float]) -> Floats:
        """(n,) QOS factor of each job: the highest priority of all QOS is 1, whether a job has it or not."""
        names = list(priority)
        factor = dict(zip(names, normalised(np.array([priority[name] for name in names])).tolist(), strict=True))
        return np.array([factor.get(name, 0.0) for name in simulation.jobs.qos.texts()], dtype=np.float64)

    def sums(self, simulation: Simulation, rows: Rows) -> Ints:
        """(n,) of these jobs now, fractions dropped; the fair share is that of the last calculation."""
        fairshare = self._fairshare[self._association[rows]]
        found = changing_term(self.weights, simulation.now, simulation.submitted[rows], fairshare)
        for term in self._fixed:
            found += term[rows]
        return np.asarray(np.floor(found), dtype=np.int64)

    def passed(self, simulation: Simulation) -> None:
        """Charge what ran since the last call, let all usage decay, and rank the users again."""
        if not self.weights.fairshare:
            return
        now, since = simulation.now, self._until
        seconds = np.minimum(simulation.end, now) - np.maximum(simulation.start, since)
        ran = np.flatnonzero(seconds > 0.0)  # NaN: not started
        self._usage.decay(now)
        if len(ran):
            self._usage.charge(self._association[ran], self._billing[ran] * simulation.grown[ran], seconds[ran])
        self._fairshare = self._usage.factors()
        self._until = now
