"""Resolves the packages again and writes both lock files, with uv (`make lock`).

requirements.lock has three parts, and each needs those above it: the daemon, `# simulate`, `# dev`. What is locked
already keeps its version.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Up to `# simulate`: the daemon. Up to `# dev`: also the simulator. All of it: development.\n"
# `make demo` installs the project itself, too.
BUILDS_RLTUNED = "hatchling\neditables\n"


def resolve(out: Path, *options: str, also: str = "") -> dict[str, str]:
    """Has uv resolve what the options name, with `also` on its input; returns the lines of each package in `out`."""
    words = ["uv", "pip", "compile", "-q", "--universal", "--python-version", "3.11", "--no-header"]
    subprocess.run(
        [*words, *options, "-o", out], cwd=ROOT, input=also, text=True, check=True, stdout=subprocess.DEVNULL
    )
    found: dict[str, str] = {}
    for lines, name in re.findall(r"(?m)^(([\w.-]+)==.*\n(?: .*\n)*)", out.read_text(encoding="utf-8")):
        found[name] = found.get(name, "") + lines
    return found


def main() -> None:
    """Writes both files."""
    lock = ROOT / "requirements.lock"
    with tempfile.TemporaryDirectory() as folder:
        whole, part = Path(shutil.copy(lock, folder)), Path(folder) / "part"
        dev = resolve(whole, "--generate-hashes", "--extra", "dev", "pyproject.toml")
        daemon = resolve(part, "-c", str(whole), "pyproject.toml")
        simulate = resolve(part, "-c", str(whole), "--extra", "simulate", "pyproject.toml", "-", also=BUILDS_RLTUNED)
    parts = [dev.keys() & daemon, (dev.keys() & simulate) - daemon.keys(), dev.keys() - simulate]
    texts = ["".join(dev[name] for name in sorted(names)) for names in parts]
    lock.write_text(f"{HEAD}{texts[0]}# simulate\n{texts[1]}# dev\n{texts[2]}", encoding="utf-8")
    # What a release is made with, in an environment of its own.
    publish = ROOT / "requirements-publish.lock"
    resolve(publish, "--generate-hashes", "-c", lock.name, "--group", "publish")


if __name__ == "__main__":
    main()
