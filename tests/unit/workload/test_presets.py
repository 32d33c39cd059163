"""The tables of generated workloads: those that were counted, and refused with the file's name when they cannot be."""

import hashlib
from importlib import resources

import pytest

from rltuned.errors import WorkloadError
from rltuned.workload.presets import FILE, parse, presets

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


@pytest.fixture
def text():
    return (resources.files("rltuned.workload") / FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("sweep = 1.1", "sweep = 0", r"presets\.philly\.sweep: Input should be greater than 0"),
        ("sweep = 1.1", "sweeps = 1.1", r"presets\.philly\.sweeps: Extra inputs are not permitted"),
        ("sweep = 1.1", "sweep = 1.1.1", "at line 2"),
        ("share = 0.8715", "share = 0.5", "classes: the sum of the shares is 0.6285, expected 1"),
        ("[12, 0.018], [16, 0.982]", "[16, 0.982], [12, 0.018]", "gpus: 12 after 16, expected rising numbers"),
        ("[1, 17, 45, 59,", "[1, 17, 45, 44,", "run_time: 44 after 45, expected rising numbers"),
        ("[2, 5, 10, 12,", "[2, 5, 12,", r"presets\.philly\.classes\.1\.run_time: 17 values for 18 levels"),
        ("levels = [0, 0.01,", "levels = [0.001, 0.01,", "levels: expected numbers from 0 to 1"),
        ("cpus = [0.18, 0.18,", "cpus = [0.18,", "per_gpu: cpus: 7 values for 8 levels"),
    ],
)
def test_what_cannot_be_is_refused_by_file_and_field(text, before, after, said):
    lines = text.replace("[\n    1, 17, 45", "[1, 17, 45")
    assert before in lines
    with pytest.raises(WorkloadError, match=rf"^/some/{FILE}: .*{said}"):
        parse(lines.replace(before, after, 1), f"/some/{FILE}")
