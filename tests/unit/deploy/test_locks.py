"""The lock file names every package: it is installed without looking up what else a package needs (Makefile)."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]


def test_what_the_lock_file_installs_lacks_nothing():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def needed(name: str, extra: str = "") -> set[str]:
    """A package and all that it needs here, directly or not."""
    found: set[str] = set()
    asked = [(name, extra)]
    for package, wanted in asked:
        found.add(package)
        try:
            lines = map(Requirement, requires(package) or [])
        except PackageNotFoundError:  # of another system
            continue
        for line in lines:
            each = [(canonicalize_name(line.name), more) for more in ("", *line.extras)]
            if line.marker is None or line.marker.evaluate({"extra": wanted}):
                asked += [one for one in each if one not in asked]
    return found - {name}


@pytest.mark.parametrize(("until", "extra"), [("simulate", ""), ("dev", "simulate")])
def test_a_part_of_the_lock_file_has_all_that_an_installation_needs_and_no_tensorflow(until: str, extra: str):
    part = (ROOT / "requirements.lock").read_text().partition(f"# {until}\n")[0]
    names = {canonicalize_name(name) for name in re.findall(r"(?m)^([\w.-]+)==", part)}
    assert needed("rltuned", extra) <= names
    assert len(needed("rltuned", extra)) > len(names) // 2
    assert "tensorflow" not in names
