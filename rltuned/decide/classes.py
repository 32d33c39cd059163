"""Classes: the jobs that exchange priorities with each other."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rltuned.cluster.tables import Ints, JobTable
from rltuned.config import DecideSection


@dataclass(frozen=True)
class Classes:
    """C classes of n managed jobs."""

    of: npt.NDArray[np.intp]
    """(n,) class of each job."""
    names: tuple[str, ...]
    """(C,) e.g. "tier=1 qos=normal"."""

    tiers: tuple[int, ...]
    """(C,) priority tier of each class."""

    @cached_property
    def members(self) -> tuple[npt.NDArray[np.intp], ...]:
        """(C,) positions of each class's jobs."""
        if not self.names:
            return ()
        order = np.argsort(self.of, kind="stable")
        return tuple(np.split(order, np.searchsorted(self.of[order], np.arange(1, len(self.names)))))


def classify(jobs: JobTable, rows: npt.NDArray[np.intp], tier: Ints, settings: DecideSection) -> Classes:
    """Classes of the managed jobs in `rows`: those for which the same was decided, equal in all of `settings.class_by`.

    What people and the site decide about a job's place stands (decision 0160): its terms of nice, partition, QOS and
    association. Slurm looks at priorities only within a tier, and puts every job that has a reservation before all that
    have none.
    """
    columns: dict[str, tuple[Ints, tuple[str, ...]]] = {
        "tier": (tier, ()),
        "qos": (jobs.qos.codes[rows].astype(np.int64), jobs.qos.names),
        "partition": (jobs.partition.codes[rows].astype(np.int64), jobs.partition.names),
        "account": (jobs.account.codes[rows].astype(np.int64), jobs.account.names),
        "reservation": (jobs.reservation.codes[rows].astype(np.int64), jobs.reservation.names),
        "decided": (jobs.decided.codes[rows].astype(np.int64), jobs.decided.names),
    }
    by: list[str] = ["tier", *(name for name in settings.class_by if name != "tier")]
    by += [name for name in ("reservation", "decided") if (columns[name][0] >= 0).any()]
    key = np.zeros(len(rows), dtype=np.int64)
    for name in by:
        # Renumber first: tiers may be large numbers, and the key must stay within 64 bits.
        values, inverse = np.unique(columns[name][0], return_inverse=True)
        key = key * (len(values) + 1) + inverse
    _, first, of = np.unique(key, return_index=True, return_inverse=True)
    names = []
    for at in first:
        parts = []
        for name in by:
            values, texts = columns[name]
            code = int(values[at])
            text = texts[code] if texts and code >= 0 else code if not texts else "-"
            parts.append(str(text) if name == "decided" and code >= 0 else f"{name}={text}")
        names.append(" ".join(parts))
    return Classes(of.astype(np.intp), tuple(names), tuple(tier[first].tolist()))
