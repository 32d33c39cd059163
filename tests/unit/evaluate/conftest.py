"""The testbed's Python, which is no package."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

TESTBED = Path(__file__).resolve().parents[3] / "docker-slurm-testbed"
MODULES = ("ab", "ab_jobs", "ab_report", "ab_simulated", "ab_trace", "replay", "testbed")


@pytest.fixture(scope="module")
def ab() -> Iterator[Any]:
    """Everything of ab.py and of what it imports, by module."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(TESTBED))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(TESTBED))
        for name in MODULES:
            sys.modules.pop(name, None)
            if isinstance(before[name], ModuleType):
                sys.modules[name] = before[name]
