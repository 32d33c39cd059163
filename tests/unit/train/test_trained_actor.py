"""The study of what training makes: trained, judged, kept, and the same when nothing is left to train."""

import csv

import pytest
from measures import trained_actor as actor
from unit.evaluate.small import busy_jobs

from rltuned.simulate.workload.write import write_csv

pytestmark = pytest.mark.learn


def test_what_is_trained_is_judged_on_the_last_windows_and_kept(tmp_path, monkeypatch, small_trainings):
    pytest.importorskip("tensorflow")
    write_csv(busy_jobs(300), tmp_path / "small.csv")
    places = {name: tmp_path / name.lower() for name in ("WORK", "TABLE", "CURVES")}
    values = {
        **places,
        "PICTURE": tmp_path / "curves.svg",
        "SITES": {"Small": ("small.csv", "2x4")},
        "RUNS": {"seed-7": actor.Run(), "seed-8": actor.Run(seed=8)},
        "STEPS": "1,1",
        "JUDGED": (20, 4, 1),
        "LEAST": 0.0,
    }
    for name, value in values.items():
        monkeypatch.setattr(actor, name, value)
    asked = [str(tmp_path), "--processes", "1", "--only", "seed-7"]
    assert actor.main(asked) == 0
    rows = list(csv.DictReader((tmp_path / "table").read_text().splitlines()))
    assert {row["policy"] for row in rows} >= {"actor", "last layer zero", "wait=1"}
    assert {row["estimates"] for row in rows} == {"noisy:1.5", "history"}
    assert all(float(row["lo"]) <= float(row["objective"]) <= float(row["hi"]) for row in rows)
    assert [row["step"] for row in csv.DictReader((tmp_path / "curves").read_text().splitlines())] == ["1", "2"]
    assert (tmp_path / "curves.svg").read_bytes().startswith(b"<?xml")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert actor.main(asked) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
