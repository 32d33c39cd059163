"""What a site installs: the wheel and the sdist, the Debian packages on a host with systemd beside a real Slurm."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cluster.support import ROOT

from rltuned import __version__

if TYPE_CHECKING:
    from pathlib import Path


def run(*words: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, check=False, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that was made of that sdist, not of the tree."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    assert sorted(path.name for path in folder.iterdir()) == [
        f"rltuned-{__version__}-py3-none-any.whl",
        f"rltuned-{__version__}.tar.gz",
    ]
    return folder


@pytest.fixture(scope="module")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a new virtual environment with that wheel and requirements.lock, as the page says."""
    venv = tmp_path_factory.mktemp("alone") / "venv"
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin/pip", "install", "-q", "--require-hashes", "-r", ROOT / "requirements.lock")
    run(venv / "bin/pip", "install", "-q", "--no-deps", "--no-index", *built.glob("*.whl"))
    return venv / "bin"


def test_the_wheel_of_the_sdist_works_alone(alone: Path, tmp_path: Path):
    def rltuned(*words: str) -> subprocess.CompletedProcess[str]:
        # No variable of this environment: it may lead to the source tree.
        given = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "RLTUNED_STATE__DIRECTORY": str(tmp_path)}
        done = subprocess.run(
            [alone / "rltuned", *words], check=False, capture_output=True, text=True, cwd=tmp_path, env=given
        )
        assert "Traceback" not in done.stdout + done.stderr, (words, done.stderr[-2000:])
        return done

    assert rltuned("--version").stdout == f"rltuned, version {__version__}\n"
    assert "stage shadow" in rltuned("check-config").stdout
    verified = rltuned("model", "verify", "general")
    assert verified.returncode == 0, verified.stdout
    assert "golden" in verified.stdout
    # What `show-config --sample` prints is what is kept in deploy/ for who has no program yet.
    assert rltuned("show-config", "--sample").stdout == (ROOT / "deploy/config.toml").read_text()
    assert rltuned("restore").returncode == 0
    (tmp_path / "config.toml").write_text(f'[slurm]\nbin_dir = "{tmp_path}"\n')
    plan = rltuned("plan", "--config", str(tmp_path / "config.toml"))
    assert plan.returncode == 5
    assert "set slurm.bin_dir" in plan.stderr
    commands = re.findall(r"(?m)^  ([a-z-]+)  ", rltuned("--help").stdout.partition("Commands:")[2])
    assert {"run", "doctor", "evaluate", "train"} <= set(commands)
    for command in commands:
        assert rltuned(command, "--help").returncode == 0, command


def test_what_the_lock_file_names_is_all_that_the_wheel_needs(alone: Path):
    assert run(alone / "pip", "check").stdout == "No broken requirements found.\n"
