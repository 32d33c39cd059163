"""What is advised where an extra is missing works for what is installed."""

import sys
from pathlib import Path

import pytest

from rltuned import installed
from rltuned.errors import MissingError

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = (
    "numpy>=1.26",
    "numba>=0.60; extra == 'simulate'",
    'matplotlib>=3.8 ; python_version > "3" and extra == "simulate"',
    "rltuned[simulate]; extra == 'train'",
    "tensorflow>=2.16; extra == 'train'",
)


def test_a_checkout_is_told_its_own_extra_and_one_without_an_environment_make_venv(monkeypatch):
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    assert installed.how_to_install("simulate") == f"{sys.executable} -m pip install -e '{ROOT}[simulate]'"
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert installed.how_to_install("simulate") == f"make -C {ROOT} venv"


def test_a_wheel_is_told_the_packages_because_no_index_has_rltuned(monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "_PROJECT", tmp_path)
    said = installed.how_to_install("simulate")
    assert said.startswith(f"{sys.executable} -m pip install ")
    assert "'numba>=0.60'" in said
    assert "rltuned" not in said.partition(" -m ")[2]


def test_a_package_without_pip_is_told_the_package_that_completes_it(monkeypatch, tmp_path):
    steps = (ROOT / "packaging/build.py").read_text(encoding="utf-8")
    assert 'put(tree, "opt/rltuned/package-steps"' in steps, "what a package is known by"
    monkeypatch.setattr(installed, "_PROJECT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert "pip install" in installed.how_to_install("simulate")
    (tmp_path / "package-steps").touch()
    assert installed.how_to_install("simulate") == "install the package rltuned-simulate"
    assert "docs/installation.md" in installed.how_to_install("train")


def test_an_extra_that_holds_another_one_names_the_packages_of_both():
    assert installed.packages("simulate", REQUIRED) == ("matplotlib>=3.8", "numba>=0.60")
    assert installed.packages("train", REQUIRED) == ("matplotlib>=3.8", "numba>=0.60", "tensorflow>=2.16")


def test_each_module_that_may_be_missing_is_of_an_extra_that_the_project_has():
    names = {extra: installed.packages(extra) for extra in set(installed.MODULES.values())}
    lacking = [
        module
        for module, extra in installed.MODULES.items()
        if not any(package.startswith(module) for package in names[extra])
    ]
    assert lacking == []


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
