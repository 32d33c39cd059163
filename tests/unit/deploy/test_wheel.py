"""What is installed: the package, its models and its tables, and nothing of what only the project needs."""

import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (found,) = folder.glob("*.whl")
    with zipfile.ZipFile(found) as archive:
        return found, archive.namelist()


def test_the_wheel_holds_the_package_alone(wheel):
    _, names = wheel
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"rltuned"}
    assert [name for name in names if "stud" in name or "manpage" in name or "results" in name] == []


def test_a_wheel_alone_has_models_and_tables_of_generated_workloads(wheel, tmp_path):
    path, names = wheel
    assert {"rltuned/models/general.json", "rltuned/models/general.safetensors"} <= set(names)
    # From the archive itself: no file of the source tree is in reach.
    program = "from rltuned.simulate.workload import presets; print(presets.__file__, *presets.presets().presets)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(path)},
        check=True,
        capture_output=True,
        text=True,
    )
    where, *found = done.stdout.split()
    assert where.startswith(str(path))
    assert found == ["philly", "helios", "pai"]


def test_a_worker_process_that_imports_the_packages_start_script_runs_nothing(tmp_path, monkeypatch):
    script = tmp_path / "rltuned"
    script.write_text(runpy.run_path(str(ROOT / "packaging/build.py"))["START"])
    monkeypatch.setattr(sys, "argv", ["rltuned", "--version"])
    runpy.run_path(str(script), run_name="__mp_main__")  # as multiprocessing.spawn does
    with pytest.raises(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
