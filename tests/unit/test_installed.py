"""What is advised where an extra is missing."""

import sys
import tomllib
from pathlib import Path

import pytest

from rltuned.core import installed
from rltuned.core.errors import MissingError

ROOT = Path(__file__).resolve().parents[2]


def test_the_extra_and_the_page_are_named_and_the_package_where_there_is_one():
    assert installed.how_to_install("train") == "install the extra [train] (docs/installation.md, section 1)"
    assert "or the package rltuned-simulate (" in installed.how_to_install("simulate")
    page = (ROOT / "docs/installation.md").read_text(encoding="utf-8").partition("## 1.")[2].partition("## 2.")[0]
    assert all(f"`{extra}`" in page for extra in {*installed.MODULES.values()})


def test_each_module_that_may_be_missing_is_of_an_extra_that_the_project_has():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for module, extra in installed.MODULES.items():
        assert any(package.startswith(module) for package in extras[extra])


def test_only_a_module_of_an_extra_becomes_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with (
        pytest.raises(MissingError, match="evaluate needs numba, which is not installed: "),
        installed.needed("evaluate"),
    ):
        import numba.core  # noqa: F401
    with pytest.raises(MissingError, match="training needs numba"):
        installed.require("training", "numpy", "numba")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), installed.needed("evaluate"):
        import no_such_module  # noqa: F401
