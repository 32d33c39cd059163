"""Which extra of the installation has a module that is missing. Imports nothing of rltuned but its errors."""

from importlib.util import find_spec
from typing import Final

from rltuned.core.errors import MissingError

MODULES: Final = {
    "matplotlib": "simulate",
    "numba": "simulate",
    "scipy": "simulate",
    "tensorflow": "train",
    "pyslurm": "pyslurm",
}
"""The extra that has a module which the daemon need not have."""


def has_numba() -> bool:
    """Whether Numba is installed; it is not loaded."""
    return find_spec("numba") is not None


def forecast_remedy(trouble: str) -> str:
    """What to do about a worker that does not answer."""
    if "executable memory" in trouble:  # as llvmlite says it
        return "the unit forbids machine code made at run time: install systemd/rltuned-forecast.conf"
    return 'docs/start-times.md has the causes; forecast.enabled = "off" does without'


def how_to_install(extra: str) -> str:
    """What to do where an extra is missing. rltuned is on no package index: its name alone installs nothing."""
    package = " or the package rltuned-simulate" if extra == "simulate" else ""
    return f"install the extra [{extra}]{package} (docs/installation.md, section 1)"


def missing(name: str, what: str) -> MissingError:
    """The error of `what` (a command, an option) where the module of that name is not installed."""
    top = name.partition(".")[0]
    return MissingError(f"{what} needs {top}, which is not installed: {how_to_install(MODULES[top])}")


def require(what: str, *names: str) -> None:
    """Refuse at once what could only fail later: MissingError. The modules are looked for, not loaded."""
    for name in names:
        if find_spec(name) is None:
            raise missing(name, what)
