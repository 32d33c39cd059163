"""docs/licences.md names every locked dependency of an installation with its licence, as the packages say it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/licences.md"


def test_every_package_that_a_lock_file_of_an_installation_names_is_on_the_page_with_its_licence():
    text = (ROOT / "requirements.lock").read_text().partition("# dev\n")[0]
    locked = {name.lower().replace("_", "-") for name in re.findall(r"(?m)^([\w.-]+)==", text)}
    listed = dict(re.findall(r"(?m)^\| ([\w.-]+) \| (.+) \|$", PAGE.read_text()))
    assert len(locked) > 30
    assert locked == listed.keys() - {"package", "---"}
    unknown = {name for name, licence in listed.items() if licence in {"", "UNKNOWN"}}
    assert unknown == set()


def test_the_page_is_what_the_installed_packages_say():
    done = subprocess.run(
        [sys.executable, ROOT / "packaging/licences.py"], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == PAGE.read_text()
