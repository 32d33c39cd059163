"""Jobs that were submitted: what is known of who comes."""

from dataclasses import dataclass, fields
from typing import Any

from rltuned.cluster.tables import Category, Codes, Floats, Ints, Rows


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
    """In all."""
    gpus_per_node: Codes
    """0: only a total was asked."""
    cpus: Codes
    """In all."""
    mem: Floats
    """MiB in all."""
    time_limit: Floats
    """Seconds; infinite without one."""
    expected: Floats
    """Seconds that each is (or was) expected to run."""
    run_time: Floats
    """Seconds that it took, NaN where it has not ended."""

    def __len__(self) -> int:
        return len(self.job_id)

    def take(self, rows: Rows) -> "Submissions":
        """These rows, in that order."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            columns[column.name] = value.take(rows) if isinstance(value, Category) else value[rows]
        return Submissions(**columns)
