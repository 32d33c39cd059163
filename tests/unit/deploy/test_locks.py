"""The lock file names every package: it is installed without looking up what else a package needs (Makefile)."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]


def test_what_the_lock_file_installs_lacks_nothing():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def needed(lines: list[str]) -> set[str]:
    """The packages that these requirements name, and all that they need here, directly or not."""
    asked = [(canonicalize_name(line.name), extra) for line in map(Requirement, lines) for extra in ("", *line.extras)]
    for package, extra in asked:
        try:
            requirements = map(Requirement, requires(package) or [])
        except PackageNotFoundError:  # of another system
            continue
        for line in requirements:
            each = [(canonicalize_name(line.name), more) for more in ("", *line.extras)]
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                asked += [one for one in each if one not in asked]
    return {package for package, _ in asked}


@pytest.mark.parametrize(("until", "extra"), [("simulate", ""), ("dev", "simulate")])
def test_a_part_of_the_lock_file_has_all_that_an_installation_needs_and_no_tensorflow(until: str, extra: str):
    part = (ROOT / "requirements.lock").read_text().partition(f"# {until}\n")[0]
    names = {canonicalize_name(name) for name in re.findall(r"(?m)^([\w.-]+)==", part)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = needed(project["dependencies"] + project["optional-dependencies"].get(extra, []))
    assert len(names) // 2 < len(wanted)
    assert wanted <= names
    assert "tensorflow" not in names
