"""What is advised where an extra is missing."""

import tomllib
from pathlib import Path

from rltuned.core import installed

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
