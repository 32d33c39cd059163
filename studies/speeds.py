"""`rltuned/workload/speeds.toml`, made from the throughputs that Gavel measured.

``python -m studies.speeds gavel-throughputs.csv > rltuned/workload/speeds.toml`` writes it. The table has training
steps per second (docs/workloads.md says where it is published); what is kept of it are ratios, and no names.
"""

import csv
import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

TYPES = ("k80", "p100", "v100")
LIKE = {
    "m40": ("k80", "p100"),
    "t4": ("k80", "p100"),
    "misc": ("k80",),
    "v100m16": ("v100",),
    "v100m32": ("v100",),
    "g2": ("v100",),
    "g3": ("v100",),
}
"""The nearest measured types. PAI's MISC are older ones; G2 and G3 are what OpenB calls newer ones without a name."""

HEAD = """\
# How fast kinds of deep learning training run on GPUs of each type, relative to the first, and what is left of that
# when they are spread over several nodes. Ratios of the throughputs that Gavel measured (Narayanan et al., OSDI'20;
# MIT licence), a row for each kind of job, without its name. rltuned/workload/speeds.py reads it, studies/speeds.py
# made it.
"""


def made(rows: Iterable[Mapping[str, str]]) -> str:
    """The file, from the rows of the published table.

    A kind that was not measured on each type on one node is left out. Where spreading was not measured on one type, the
    mean of the others counts.
    """
    lines = [HEAD, f"types = {_texts(TYPES)}", "", "[like]"]
    lines += [f"{name} = {_texts(types)}" for name, types in LIKE.items()]
    for gpus, group in groupby(sorted(rows, key=lambda row: int(row["gpus"])), key=lambda row: int(row["gpus"])):
        speeds, spreads = [], []
        for row in group:
            packed = [_number(row[f"steps_per_s_{name}"]) for name in TYPES]
            apart = [_number(row[f"steps_per_s_{name}_unconsolidated"]) for name in TYPES]
            if not all(packed):
                continue
            left = [min(b / a, 1.0) for a, b in zip(packed, apart, strict=True) if b]
            mean = sum(left) / len(left)
            speeds.append([speed / packed[0] for speed in packed])
            spreads.append([min(b / a, 1.0) if b else mean for a, b in zip(packed, apart, strict=True)])
        lines += ["", "[[kinds]]", f"gpus = {gpus}", *_table("speed", speeds), *_table("spread", spreads)]
    return "\n".join(lines) + "\n"


def _number(text: str) -> float:
    return float(text) if text else 0.0


def _texts(values: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


def _table(name: str, rows: list[list[float]]) -> list[str]:
    return [f"{name} = [", *("    [" + ", ".join(f"{value:.2f}" for value in row) + "]," for row in rows), "]"]


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as file:
        sys.stdout.write(made(csv.DictReader(file)))
