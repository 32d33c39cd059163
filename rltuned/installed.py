"""Which extra of the installation has a module that is missing, and a command that installs it here.

rltuned is on no package index, so `pip install 'rltuned[simulate]'` works nowhere. Imports nothing of rltuned but its
errors, and the metadata of packages only when something is missing.
"""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rltuned.errors import MissingError

MODULES: Final = {
    "matplotlib": "simulate",
    "numba": "simulate",
    "scipy": "simulate",
    "tensorflow": "train",
    "pyslurm": "pyslurm",
}
"""The extra that has a module which the daemon need not have."""
_PROJECT: Final = Path(__file__).resolve().parents[1]
_PACKAGED: Final = "package-steps"
"""Beside the environment, where it came with a Debian or RPM package (packaging/build.py)."""
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_OWN: Final = re.compile(r"^rltuned\[([a-z,]+)\]")


def has_numba() -> bool:
    """Whether Numba is installed; it is not loaded."""
    return find_spec("numba") is not None


def how_to_install(extra: str) -> str:
    """The command that installs what an extra needs into the Python that runs, for the installation that is there.

    - A checkout that no environment has been made for: `make venv`, which takes the locked versions.
    - A checkout: its own extra.
    - A package of the distribution, whose environment has no pip: the package that completes it.
    - A wheel: the packages that the wheel's metadata names for the extra.
    """
    if Path(sys.prefix).with_name(_PACKAGED).is_file():
        if extra == "simulate":
            return "install the package rltuned-simulate"
        return "the packages do not have it: use an installation by hand (docs/installation.md)"
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    if (_PROJECT / "pyproject.toml").is_file():
        if sys.prefix == sys.base_prefix:
            return f"make -C {shlex.quote(str(_PROJECT))} venv"
        return f"{pip} -e {shlex.quote(f'{_PROJECT}[{extra}]')}"
    return f"{pip} {' '.join(map(shlex.quote, packages(extra)))}"


def packages(extra: str, required: Sequence[str] | None = None) -> tuple[str, ...]:
    """What an extra needs, as pip takes it. `required`: of the installed rltuned, unless given."""
    if required is None:
        from importlib.metadata import requires  # noqa: PLC0415 - 30 ms, and only an error needs it

        required = requires("rltuned") or ()
    found: list[str] = []
    for line in required:
        name, _, marker = line.partition(";")
        condition = _EXTRA.search(marker)
        if condition is None or condition[1] != extra:
            continue
        if own := _OWN.match(name):
            found += [package for part in own[1].split(",") for package in packages(part, required)]
        else:
            found.append(name.strip())
    return tuple(sorted(set(found)))


def missing(name: str, what: str) -> MissingError:
    """The error of `what` (a command, an option) where the module of that name is not installed."""
    top = name.partition(".")[0]
    return MissingError(f"{what} needs {top}, which is not installed: {how_to_install(MODULES[top])}")


def require(what: str, *names: str) -> None:
    """Refuse at once what could only fail later. The modules are looked for, not loaded.

    Raises:
        MissingError: one of them is not installed.
    """
    for name in names:
        try:
            there = find_spec(name) is not None
        except ValueError:  # a module that was set to None in `sys.modules`
            there = False
        if not there:
            raise missing(name, what)


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Around imports: names the remedy where one fails for lack of an extra.

    Raises:
        MissingError: a module of `MODULES` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in MODULES:
            raise
        raise missing(error.name or "", what) from error
