"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, header comments behind ``;``.

https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. A processor takes the place of a GPU.
"""

import re
from typing import Final

import numpy as np

from rltuned.simulate.workload.batch import (
    MAX_CPUS,
    MAX_DURATION,
    MAX_GPUS,
    MAX_MEM,
    MAX_TIME,
    Batch,
    Collector,
    Rows,
    as_batch,
    limit,
)
from rltuned.simulate.workload.lines import TextFile, strange

FIELDS: Final = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
_QUEUE = re.compile(r";\s*Queue:\s*(\d{1,9})\s+(\S+)", re.ASCII)
PARTIAL: Final = ("2", "3", "4")
"""Status of the parts of a job that was swapped out or checkpointed; the whole job has a line of its own."""


def read_swf(file: TextFile, collector: Collector) -> None:
    """Read all jobs of `file`.

    Raises:
        WorkloadError: a line wrong (unless skipped).
    """
    queues: dict[str, str] = {}

    def fields(line: str) -> list[str] | None:
        if line.lstrip().startswith(";"):
            if (named := _QUEUE.match(line)) is not None:
                queues[named.group(1)] = named.group(2)
            return None
        if wrong := strange(line):
            raise ValueError(wrong)
        return line.split()

    for lines in file.batches():
        batch = as_batch(lines, FIELDS, fields)
        if len(batch):
            collector.add(batch, _rows(batch, queues))


def _rows(batch: Batch, queues: dict[str, str]) -> Rows:
    used, asked = batch.count("allocated processors", MAX_GPUS), batch.count("requested processors", MAX_GPUS)
    run = batch.number("run time", MAX_DURATION)
    # The run time is that of the processors the job had.
    processors = np.where(used > 0, used, asked)
    none = ~(processors > 0)
    batch.note(
        none & (run > 0), lambda _: "allocated processors and requested processors: the job ran, and neither is known"
    )
    batch.never_ran |= none
    memory = batch.number("requested memory", MAX_MEM, scale=1 / 1024)
    batch.never_ran |= np.array([status in PARTIAL for status in batch.columns["status"]], dtype=np.bool_)
    return Rows(
        submit_time=batch.number("submit time", MAX_TIME, required=True),
        run_time=run,
        gpus=processors,
        job_id=batch.number("job number", MAX_CPUS),
        time_limit=batch.floats("requested time", limit),
        wait_time=batch.number("wait time", MAX_DURATION),
        mem=memory * processors,
        user=batch.text("user"),
        account=batch.text("group"),
        partition=[queues.get(queue, queue) for queue in batch.text("queue")],
    )
