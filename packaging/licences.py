"""The licences of all packages that an installation has by the lock file, from their own metadata, as a page.

``python packaging/licences.py > docs/licences.md``, in an environment that has them (`make pages`).
"""

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("The daemon", "Start times, the gate, the simulator")
"""Of the lock file; the third is for development."""
ELSEWHERE = {"tzdata": "Apache-2.0"}
"""Packages of other systems than Linux, which no environment here has."""


def locked(part: str) -> set[str]:
    """The packages of a part of the lock file."""
    return {canonicalize_name(each) for each in re.findall(r"(?m)^([A-Za-z0-9._-]+)==", part)}


def licence(name: str) -> str:
    """What a package says of its licence: the expression, else the classifiers, else the first line of the text."""
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return ELSEWHERE[name]
    if expression := said.get("License-Expression"):
        return str(expression)
    classifiers = [each.rpartition(" :: ")[2] for each in said.get_all("Classifier", []) if each.startswith("License")]
    lines = (said.get("License") or "").strip().splitlines()
    return ", ".join(classifiers) or (lines[0] if lines else "")


def page() -> str:
    """The page, ending in a newline."""
    lines = [
        "# Licences",
        "",
        "rltuned is under the GPL, version 3 or later. These are the packages that an installation holds beside it, as",
        "their own metadata has it. Made by `python packaging/licences.py`; do not edit.",
    ]
    parts = re.split(r"(?m)^# (?:simulate|dev)$", (ROOT / "requirements.lock").read_text(encoding="utf-8"))
    for heading, part in zip(PARTS, parts, strict=False):
        lines += ["", f"## {heading}", "", "| package | licence |", "| --- | --- |"]
        lines += [f"| {name} | {licence(name)} |" for name in sorted(locked(part))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
