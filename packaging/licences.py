"""The licences of all packages that the lock files of an installation name, from their own metadata, as a page.

``python packaging/licences.py > docs/licences.md``, in an environment that has them (`make pages`).
"""

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {
    "The daemon": "requirements.lock",
    "Rollouts, the gate, the simulator": "requirements-simulate.lock",
}
ELSEWHERE = {"tzdata": "Apache-2.0"}
"""Packages of other systems than Linux, which no environment here has."""


def locked(name: str) -> set[str]:
    """The packages of a lock file."""
    found = re.findall(r"(?m)^([A-Za-z0-9._-]+)==", (ROOT / name).read_text(encoding="utf-8"))
    return {canonicalize_name(each) for each in found}


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
    before: set[str] = set()
    for heading, lock in LOCKS.items():
        lines += ["", f"## {heading}", "", f"`{lock}`", "", "| package | licence |", "| --- | --- |"]
        names = locked(lock) - before
        lines += [f"| {name} | {licence(name)} |" for name in sorted(names)]
        before |= names
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
