"""Who has submitted what: what a model of arrivals is fitted to (docs/start-times.md)."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from rltuned.core.tables import Category, Codes, Floats, Ints


@dataclass(frozen=True)
class Submissions:
    """Jobs that were submitted, (n,) each, in the order of their submission."""

    job_id: Ints
    submit_time: Floats  # epoch seconds
    user: Category
    partition: Category  # as Slurm prints it; the first of several counts
    gpu_type: Category
    nodes: Codes
    gpus: Codes  # in all, like `cpus` and `mem`
    gpus_per_node: Codes  # 0: only a total was asked
    cpus: Codes
    mem: Floats  # miB
    time_limit: Floats  # seconds; infinite without one
    expected: Floats  # seconds that each is (or was) expected to run
    run_time: Floats  # seconds that it took, NaN where it has not ended

    def __len__(self) -> int:
        return len(self.job_id)

    def and_then(self, other: "Submissions") -> Self:
        """These and, behind them, the others."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            one, two = getattr(self, column.name), getattr(other, column.name)
            if isinstance(one, Category):
                columns[column.name] = Category.of([*one.texts(), *two.texts()])
            else:
                columns[column.name] = np.concatenate((one, two))
        return replace(self, **columns)

    def without_names(self) -> "Submissions":
        """The same without the names of users."""
        users = Category(self.user.codes, tuple(str(number) for number in range(len(self.user.names))))
        return replace(self, user=users)
