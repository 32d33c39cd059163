"""Jobs that were submitted: what is known of who comes."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from rltuned.cluster.tables import Category, Codes, Floats, Ints


@dataclass(frozen=True)
class Submissions:
    """Jobs that were submitted, (n,) each, in the order of their submission."""

    job_id: Ints
    submit_time: Floats
    """Epoch seconds."""
    user: Category
    partition: Category
    """As Slurm prints it; the first of several counts."""
    gpu_type: Category
    nodes: Codes
    gpus: Codes
    """In all, like `cpus` and `mem`."""
    gpus_per_node: Codes
    """0: only a total was asked."""
    cpus: Codes
    mem: Floats
    """MiB."""
    time_limit: Floats
    """Seconds; infinite without one."""
    expected: Floats
    """Seconds that each is (or was) expected to run."""
    run_time: Floats
    """Seconds that it took, NaN where it has not ended."""

    def __len__(self) -> int:
        return len(self.job_id)

    def and_then(self, other: "Submissions") -> "Submissions":
        """These and, behind them, the others."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            one, two = getattr(self, column.name), getattr(other, column.name)
            if isinstance(one, Category):
                columns[column.name] = Category.of([*one.texts(), *two.texts()])
            else:
                columns[column.name] = np.concatenate((one, two))
        return Submissions(**columns)

    def without_names(self) -> "Submissions":
        """The same without the names of users."""
        users = Category(self.user.codes, tuple(str(number) for number in range(len(self.user.names))))
        return replace(self, user=users)
