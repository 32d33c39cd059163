"""The tables of generated workloads are those that were counted."""

import hashlib

from rltuned.simulate.workload.presets import presets

COUNTED = "c8013e7b491d9da9b6c6c971625c7b7835ec290159cbe3a2ee26c97ee134c37b"
"""Of the tables as they were when they stood in the code."""


def test_the_numbers_are_those_that_were_counted_to_the_bit():
    found = presets()
    said = [*map(float.hex, found.levels)]
    for one in (found.per_gpu.levels, found.per_gpu.cpus, found.per_gpu.mem):
        said += map(float.hex, one)
    for name, preset in found.presets.items():
        said += [name, *map(float.hex, (*preset.hours, preset.day_spread, preset.sweep, preset.gap))]
        for part in preset.classes:
            said += [part.share.hex(), *(f"{gpus} {share.hex()}" for gpus, share in part.gpus), repr(part.run_time)]
    assert hashlib.sha256("\n".join(said).encode()).hexdigest() == COUNTED
