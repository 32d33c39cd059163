"""What stands beside the paper's cells, from tiny real evaluations, and what the data file says."""

import json
import math

import pytest
from unit.studies.test_studies import MAIN, PROTOCOL, means, rows_of, site, worked

from rltuned.core.errors import EvaluationError
from studies import clusters, paper
from studies.catalogue import Part, Protocol, Study, Trace, studies
from studies.page import collect, page, write
from studies.paper import tables

__all__ = ["site"]  # the fixture

CATALOGUE = list(studies())
FIGURE = f"""
[[tables]]
name = "Table 1"
title = "tiny"
source = "§ 1"
differs = "Ours is tiny."
ours = {{ protocol = "{PROTOCOL.name}", metric = "wait_mean", kind = "less" }}
columns = [{{ name = "SJF", over = "sjf" }}, {{ name = "WFP3", over = "wfp3" }}]
rows = [{{ name = "Tiny", label = "saf", values = [12.5, nan] }}]
variants = [
    {{ name = "strict", over = "fifo-strict" }},
    {{ name = "same scheduler" }},
    {{ name = "in seconds", kind = "value" }},
    {{ name = "in minutes", kind = "minutes" }},
    {{ name = "above", kind = "more" }},
    {{ name = "took", kind = "seconds" }},
]
"""
EACH = {"wait_mean": 2.0, "bsld_mean": 3.0, "makespan": 5.0, "gpus": 4.0}
CLUSTER = {
    "meta": {"form": 1, "command_line": ["testbed", "ab", "--json", "/home/somebody/ab.json"]},
    "runs": [{"seed": 1, "slurm": "24.11.5", "minutes": 30.0, "jobs": [1, 2, 3]}],
    "summary": {
        "jobs": 1024,
        "runs": [
            {
                "seed": seed,
                "slurm": "24.11.5",
                "trace": "helios-venus-users.csv.gz",
                "scale": "16x8",
                "arms": {"multifactor": dict.fromkeys(EACH, 4.0), "rl": {**EACH, "gpus": seed}},
            }
            for seed in (1, 2)
        ],
        "arms": {"multifactor": {"makespan": 600.0}, "rl": {"makespan": 540.0}},
        "prediction": {"rl": {"wait_mean": {"ratio": 0.52, "points": 2.0}}},
        "ratios": {
            "rl": {
                "wait_mean": {"ratio": 0.5, "lo": 0.25, "hi": 0.75},
                "makespan": {"ratio": 0.9},
                "gpus": {"ratio": 1.1},
                "wait_p50": {"ratio": math.nan},
            }
        },
    },
}


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The paper has one table."""
    path = tmp_path / "paper.toml"
    path.write_text(FIGURE)
    monkeypatch.setattr(paper, "tables", lambda: tables(path))
    monkeypatch.setattr(paper, "SHOWN", ("Table 1",))
    monkeypatch.setattr("studies.sheets.tables", lambda: tables(path))


def cells(out, wanted, **where):
    """Of the paper's sheet: numbers by whose they are, in the order of the columns."""
    found = {}
    for row in rows_of(out, wanted, "paper", **where):
        found.setdefault(row["whose"], []).append(float(row["value"]) if row["value"] else math.nan)
    return found


def test_every_cell_of_the_data_file_is_in_the_sheet_and_the_main_tables_are_on_the_page(tmp_path):
    text = page(collect(CATALOGUE, tmp_path))
    for table in tables():
        for line in table.rows:
            found = cells(tmp_path, CATALOGUE, table=table.name, row=line["name"])
            assert found["the paper"] == pytest.approx(line["values"], rel=1e-5, nan_ok=True)
            assert len(found) == 1 + len(table.variants)
            told = ["–" if math.isnan(value) else f"{value:,}" for value in line["values"]]
            if set(told) != {"–"} and table.name in paper.SHOWN:
                assert f"| **{line['name']}**, the paper | {' | '.join(told)} |" in text


def test_the_data_file_has_all_tables_and_figures_of_the_evaluation_that_have_something_beside_them():
    cells = {table.name: [line["values"] for line in table.rows] for table in tables()}
    assert {"Table 8", "Table 9", "Fig. 17", "Fig. 18", "Figs. 18 and 19"} < set(cells)
    assert sum(not math.isnan(value) for line in cells["Table 9"] for value in line) == 48


def test_for_each_cell_there_are_studies_that_give_ours():
    for table in tables():
        for line in table.rows:
            for column in table.columns:
                for variant in table.variants:
                    ours = table.beside(column, line, variant)
                    assert ours.given_by(CATALOGUE), (table.name, line["name"])
                    assert bool(ours.over) or ours.kind not in {paper.Kind.LESS, paper.Kind.MORE}
    wrong = paper.Ours("philly-20x8-true-easy", "nobody", paper.Kind.VALUE, "wait_mean")
    assert not wrong.given_by(CATALOGUE)


def test_ours_is_computed_from_the_windows(site, tiny):
    _, out = site
    worked(site, [MAIN])
    found = cells(out, [MAIN])
    saf, sjf, fifo, strict = (means(out, MAIN, name).mean() for name in ("saf", "sjf", "fifo", "fifo-strict"))
    assert strict > fifo
    assert found["strict"] == pytest.approx([100 * (1 - saf / strict)] * 2, rel=1e-4)
    assert found["same scheduler"][0] == pytest.approx(100 * (1 - saf / sjf), rel=1e-4, abs=1e-3)
    assert found["above"][0] == pytest.approx(100 * (saf / sjf - 1), rel=1e-4, abs=1e-3)
    assert found["in seconds"][0] == pytest.approx(saf, rel=1e-5)
    assert found["in minutes"][0] == pytest.approx(saf / 60, rel=1e-5)
    took = json.loads((out / f"{MAIN.name}.json").read_text())["policies"]["saf"]["seconds"]
    assert found["took"][0] == pytest.approx(10 * took, rel=1e-5)
    assert found["the paper"] == pytest.approx([12.5, math.nan], nan_ok=True)
    (row,) = rows_of(out, [MAIN], "paper", whose="strict", column="SJF")
    assert float(row["lo"]) <= float(row["value"]) <= float(row["hi"])
    text = page(collect([MAIN], out))
    assert f"| Tiny, ours: in minutes | {saf / 60:,.1f} |" in text
    assert f"| Tiny, ours: strict | {100 * (1 - saf / strict):.1f} [" in text


def test_a_protocol_of_the_paper_has_its_own_number_of_windows_and_no_table(site, tiny):
    protocol = Protocol(Trace("tiny", "tiny.csv", "2x4", 14, ("true",)), "true", True, 2, True)
    main = Study(protocol, Part.MAIN, MAIN.policies, "rl")
    _, out = site
    assert worked(site, [main], windows=30)[0] == ["paper-tiny-2x4-14"]
    report = json.loads((out / f"{main.name}.json").read_text())
    assert len(report["windows"]) == 2
    found = collect([main], out)
    write(found, out / "results.md")
    text = (out / "results.md").read_text()
    assert "paper-tiny" not in text
    assert rows_of(out, [main], "policies") == []


def test_a_kept_a_b_stands_beside_the_real_cluster_s_cells(tmp_path):
    (tmp_path / "given.json").write_text(json.dumps(CLUSTER))
    out = tmp_path / "ab-paper.json"
    assert clusters.main([str(tmp_path / "given.json"), str(out)]) == 0
    held = json.loads(out.read_text())
    assert held["runs"] == [{"seed": 1, "slurm": "24.11.5", "minutes": 30.0}]
    assert set(held["summary"]) == {"jobs", "runs", "arms", "ratios", "prediction"}
    assert "somebody" not in out.read_text()
    assert held["summary"]["ratios"]["rl"]["wait_p50"] == {"ratio": None}
    text = page(collect(CATALOGUE, tmp_path))
    assert "| real Slurm, ours: `rl`, jobs share nodes | 50.0 [25.0, 75.0] | 10.0 | 10.0 |" in text
    assert "| real Slurm, ours: `rl`, one job a node |  |  |  |" in text
    assert cells(tmp_path, CATALOGUE, table="Fig. 18", row="RLTune")["`rl`, jobs share nodes"] == [9.0]
    real = text[text.index("## On real clusters") :]
    told = " ".join(real.split())
    assert "Slurm 24.11.5, 1,024 jobs of scripts on the paper's five nodes" in told
    assert ": Venus on 16 × 8, seed 1; Venus on 16 × 8, seed 2." in told
    assert "| mean wait | 0.50 [0.25, 0.75] (+2) |" in real
    assert "| makespan | 0.90 |" in real
    seeds = {
        (row["part"], row["metric"]): float(row["over_multifactor"])
        for row in rows_of(tmp_path, CATALOGUE, "clusters", arm="rl")
        if row["part"] != "all"
    }
    assert seeds[("Venus on 16 × 8, seed 1", "bsld_mean")] == 0.75
    assert seeds[("Venus on 16 × 8, seed 2", "gpus")] == 0.5


def test_what_is_no_a_b_is_not_kept(tmp_path, capsys):
    (tmp_path / "given.json").write_text(json.dumps({**CLUSTER, "summary": {"jobs": 3}}))
    assert clusters.main([str(tmp_path / "given.json"), str(tmp_path / "ab-1.json")]) == 1
    assert "not what `testbed ab --json` writes" in capsys.readouterr().err
    assert not (tmp_path / "ab-1.json").exists()
    (tmp_path / "ab-2.json").write_text("{}")
    with pytest.raises(EvaluationError, match=r"ab-2\.json: cannot be read"):
        clusters.read(tmp_path)
