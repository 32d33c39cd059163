"""The results page, from tiny real evaluations."""

import csv
import io
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from unit.evaluate.small import Recording, bursts, busy_jobs, jobs_of
from unit.rank.conftest import actor_of, golden

import rltuned
from rltuned.core.errors import EvaluationError
from rltuned.lab.evaluate.case import cases
from rltuned.lab.evaluate.evaluation_report import comparisons
from rltuned.lab.evaluate.evaluation_settings import AGAIN, POLICIES
from rltuned.lab.evaluate.window_metrics import COMPARED
from rltuned.lab.evaluate.windows import Window
from rltuned.records import model_files as files
from rltuned.records.model_files import TrainingPart
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Estimates
from rltuned.simulate.workload.write import write_csv
from studies import chance, lending, waits, waits_chart
from studies.catalogue import NOISY, Part, Protocol, Study, Trace, protocols, studies
from studies.page import README_MARKS, collect, page, with_results, write
from studies.peers import model, rlscheduler
from studies.run import CODE, Sources, meaning, run
from studies.sheets import sheets

TRACE = Trace("tiny", "tiny.csv", "2x4", 14, (NOISY,))
PROTOCOL = Protocol(TRACE, NOISY, easy=False)
RULES = ("fifo-strict", "fifo", "sjf", "saf", "wfp3", "unicep", "f1", "multifactor")
MAIN = Study(PROTOCOL, Part.MAIN, (*RULES, "rl"), "rl")
PEER = Study(PROTOCOL, Part.PEER, ("rl",), "rlscheduler")
STUDIES = [MAIN, PEER]


def trained(directory, name, seed=0):
    """A model of random weights."""
    training = TrainingPart(method="ppo", data="none", traces={}, seed=seed, revision="abc", settings={})
    directory.mkdir(exist_ok=True)
    actor = actor_of(seed, name)
    return files.save(actor, directory, training, {}, golden(actor))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Traces and models of a machine, and where its results go; its code does not change unless a test says so."""
    monkeypatch.setattr("studies.run.code", lambda: "code")
    jobs = busy_jobs(200)
    lines = [f"{s:.0f},{r:.0f},{g}" for s, r, g in zip(jobs.submit_time, jobs.run_time, jobs.gpus, strict=True)]
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "tiny.csv").write_text("\n".join(["submit_time,run_time,num_gpus", *lines]) + "\n")
    trained(tmp_path / "models", "general")
    sources = Sources(tmp_path / "traces", tmp_path / "models", str(tmp_path / "models" / "general.json"))
    return sources, tmp_path / "out"


def worked(site, wanted=STUDIES, executor=None, windows=3):
    """Runs the studies; their names, and what was told."""
    sources, out = site
    told = []
    used = executor or Recording()
    names = run(wanted, sources, out, used, windows=windows, revision="r1", say=told.append)
    return names, told


def rows_of(out, wanted, sheet, **where):
    """Rows of a sheet of the kept results, those whose columns have these values."""
    results = collect(wanted, out)
    found = next(one for one in sheets(results.of, results.clusters) if one.name == sheet)
    rows = csv.DictReader(io.StringIO(found.text))
    return [row for row in rows if all(row[column] == value for column, value in where.items())]


def test_the_page_has_the_ratios_of_the_evaluations_and_the_same_bytes_twice(site):
    names, told = worked(site)
    assert names == [MAIN.name]
    assert any("models/peers/rlscheduler-tiny.json is not trained here yet" in sentence for sentence in told)
    _, out = site
    text = page(collect(STUDIES, out))
    assert text == page(collect(STUDIES, out))
    report = json.loads((out / f"{MAIN.name}.json").read_text())
    waits = {rule: report["policies"][rule]["wait_mean"] for rule in RULES if rule != "fifo-strict"}
    best = min(waits, key=waits.get)
    # As rltuned evaluate itself compares them.
    tables = {
        name: {
            metric: np.array([one["policies"][name][metric] for one in report["windows"]], dtype=float)
            for metric in COMPARED
        }
        for name in (*RULES, "rl")
    }
    all_pairs = comparisons(tables, report["meta"]["seed"])
    for other in (best, "fifo-strict", "fifo", "multifactor"):
        compared = all_pairs[f"rl/{other}"]["wait_mean"]
        (row,) = rows_of(out, STUDIES, "comparisons", policy="rl", over=other, metric="wait_mean")
        for end in ("ratio", "lo", "hi"):
            assert float(row[end]) == pytest.approx(compared[end], rel=1e-5)
    line = next(line for line in text.splitlines() if line.startswith("| tiny, 2 × 4 |"))
    ours = all_pairs[f"rl/{best}"]["wait_mean"]
    assert line.endswith(f"| {ours['ratio']:.2f} [{ours['lo']:.2f}, {ours['hi']:.2f}] | `{best}` |")
    over = all_pairs["rl/multifactor"]["wait_mean"]
    assert f"| {over['ratio']:.2f} [{over['lo']:.2f}, {over['hi']:.2f}] |" in line
    assert "rl/saf" in report["comparisons"]
    assert "sjf/saf" not in report["comparisons"]


def test_nothing_that_is_kept_names_a_path_of_the_machine(site):
    worked(site, [MAIN])
    sources, out = site
    text = page(collect(STUDIES, out))
    main = (out / f"{MAIN.name}.json").read_text()
    for kept in (text, main):
        assert str(sources.traces.parent) not in kept
    assert "--trace tiny.csv --cluster 2x4 --window 14" in main
    assert '--model models/general.json"' in main


def test_an_unchanged_study_is_not_run_again_and_one_with_another_model_trace_or_number_of_windows_is(site):
    wanted = [MAIN]
    sources, out = site
    assert worked(site, wanted)[0] == [MAIN.name]
    before = (out / f"{MAIN.name}.json").read_bytes()
    assert worked(site, wanted) == ([], [f"{MAIN.name}: unchanged"])
    assert (out / f"{MAIN.name}.json").read_bytes() == before
    trained(sources.models, "general", seed=5)
    names, told = worked(site, wanted)
    assert names == [MAIN.name]
    assert told[0] == f"{MAIN.name}: run again: changed policies"
    (sources.traces / "tiny.csv").write_text((sources.traces / "tiny.csv").read_text() + "99999,10,1\n")
    assert worked(site, wanted)[1] == [f"{MAIN.name}: run again: changed trace"]
    assert worked(site, wanted, windows=2)[1] == [f"{MAIN.name}: run again: changed command"]


def test_a_peer_is_measured_when_it_comes_on_the_same_windows_under_its_own_name(site):
    sources, out = site
    assert worked(site)[0] == [MAIN.name]
    model.save(rlscheduler.fresh(1, "rlscheduler-tiny"), sources.models / "peers", {}, {})
    assert worked(site)[0] == [PEER.name]
    report = json.loads((out / f"{PEER.name}.json").read_text())
    assert report["meta"]["policies"]["rlscheduler"]["model"]["name"] == "rlscheduler-tiny"
    assert means(out, PEER, "rlscheduler").tolist() != means(out, MAIN).tolist()
    assert rows_of(out, STUDIES, "policies", policy="rlscheduler", kind="peer")
    (row,) = rows_of(out, STUDIES, "comparisons", policy="rlscheduler", over="rl", metric="wait_mean")
    ratio = means(out, PEER, "rlscheduler").mean() / means(out, MAIN).mean()
    assert float(row["ratio"]) == pytest.approx(ratio, rel=1e-5)
    assert worked(site, [PEER])[1] == [f"{PEER.name}: unchanged"]


def means(out, study, policy="rl"):
    """Mean wait of a result, (W,)."""
    report = json.loads((out / f"{study.name}.json").read_text())
    return np.array([window["policies"][policy]["wait_mean"] for window in report["windows"]])


def test_an_interrupted_study_goes_on_where_it_stopped(site):
    with pytest.raises(KeyboardInterrupt):
        worked(site, [MAIN], Recording(stop_after=7))
    rest = Recording()
    assert worked(site, [MAIN], rest)[0] == [MAIN.name]
    assert len(rest.done) == 3 * len(MAIN.policies) - 7
    assert not list(site[1].glob("*.state"))


def test_a_result_is_not_kept_when_the_code_changed_under_it(site, monkeypatch):
    digests = iter(["before", "after"])
    monkeypatch.setattr("studies.run.code", lambda: next(digests))
    with pytest.raises(EvaluationError, match="code was changed while it ran"):
        worked(site, [MAIN])
    assert list(site[1].iterdir()) == [], "nor what it could be taken up from"


def test_results_of_other_windows_are_not_put_side_by_side(site):
    sources, out = site
    model.save(rlscheduler.fresh(1, "rlscheduler-tiny"), sources.models / "peers", {}, {})
    worked(site, [MAIN])
    worked(site, [PEER], windows=2)
    with pytest.raises(EvaluationError, match="other windows"):
        collect(STUDIES, out)


def test_a_study_is_run_again_when_the_code_is_another(site, monkeypatch):
    worked(site, [MAIN])
    monkeypatch.setattr("studies.run.code", lambda: "other code")
    assert worked(site, [MAIN]) == ([MAIN.name], [f"{MAIN.name}: run again: changed code"])


def test_the_digest_is_over_files_that_are_there():
    package = Path(rltuned.__file__).parent
    assert [pattern for pattern in CODE if not list(package.glob(pattern))] == []


def test_what_the_code_means_counts_and_remarks_do_not():
    code = 'def f(x):\n    """Says."""\n    return x + 1  # why\n\nLIMIT = 3\n"""Of f."""\n'
    assert meaning(code) == meaning("def f(x):\n\n    return (x + 1)\nLIMIT = 3\n")
    assert meaning(code) != meaning(code.replace("x + 1", "x + 2"))
    assert meaning(code) != meaning(code.replace("LIMIT = 3", "LIMIT = 4"))


def test_without_results_the_page_says_how_to_make_them(tmp_path):
    wanted = list(studies())
    text = page(collect(wanted, tmp_path))
    assert "Nothing has been measured yet" in text
    assert "142,391" in text


def test_the_page_and_its_data_are_written(site):
    worked(site, [MAIN])
    _, out = site
    write(collect(STUDIES, out), out / "results.md")
    linked = re.findall(r"\]\((results/\w+\.csv)\)", (out / "results.md").read_text())
    assert len(set(linked)) == 4
    assert all((out / path).stat().st_size for path in linked)


def test_the_catalogue_names_each_study_once_and_is_of_the_test_parts():
    wanted = list(studies())
    names = [study.name for study in wanted]
    assert len(set(names)) == len(names)
    assert {policy for study in wanted for policy in study.policies} == set(POLICIES) - {AGAIN}
    for protocol in protocols():
        asked = protocol.settings(("fifo",), 30)
        assert str(asked.split) == "test"
        assert np.isfinite(asked.window)


def lent(policy, share, j, harms="", **values):
    """A row of the table of `studies.lending`."""
    usual = dict.fromkeys(lending.COLUMNS, "0.5") | {"trace": "Venus", "nodes": "64x8", "weights": "fair share"}
    return {**usual, "policy": policy, "share": share, "j": j, "harms": harms, **values}


def test_the_page_shows_the_default_share_and_the_best_one_that_harms_nobody(tmp_path):
    rows = [
        lent("saf", "0.1", "0.7", wait="0.591", lo="0.518", hi="0.676", worse="0.12", worse_chance="0.363"),
        lent("saf", "0.5", "0.4", "GPUs in use"),
        lent("rl", "0.05", "0.9"),
        lent("rl", "0.2", "0.6", late="0.0123", late_chance="0.04", load="1.05", slurm_wait_h="5.78"),
        lent("saf", "0.1", "1.2", weights="age"),
    ]
    lines = [line for line in page(collect([], tmp_path, rows)).splitlines() if line.startswith("| Venus")]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(decides, policy, share) for _, _, decides, policy, _, _, share, *_ in shown] == [
        ("fair share", "saf", "0.1"),
        ("fair share", "rl", "0.2"),
        ("age", "saf", "0.1"),
    ]
    assert shown[0][7] == "0.59 [0.52, 0.68]"
    assert shown[0][11] == "0.12 (0.36)"
    assert (*shown[1][:2], shown[1][4:6], shown[1][7]) == (
        "Venus, 64 × 8",
        "as Graham's",
        ["1.05", "5.8 h"],
        "**0.50 [0.50, 0.50]**",
    )
    assert shown[1][-1] == "0.012 (0.040)"
    assert shown[0][5] == "30 min"
    assert not shown[2][7].startswith("**"), "it gains nothing"


def test_the_readme_shows_what_the_gate_confirms_and_nothing_else():
    empty = "".join(["before\n", *README_MARKS, "after\n"])
    rows = [
        lent("saf", "0.1", "0.7", certain="no"),
        lent("saf", "0.5", "0.6", certain="yes"),
        lent("rl", "0.1", "0.8", certain="yes", wait="0.731", slurm_wait_h="5.49"),
        lent("rl", "0.2", "0.5", "GPUs in use", certain="yes"),
        lent("rl", "0.1", "0.3", certain="yes", weights="age", wait="0.01"),
        lent("rl", "0.1", "0.9", certain="no", trace="Graham"),
        lent("rl", "0.1", "0.9", "p99 of the wait; GPUs in use", certain="yes", trace="HPC2N"),
        lent("rl", "0.1", "0.2", certain="yes", trace="Philly"),
    ]
    shown = [line for line in with_results(empty, rows).splitlines() if line.startswith("| Venus")]
    assert [line.strip("| ").split(" | ")[1:] for line in shown] == [
        [
            "30 min",
            "4.0 h: 0.73 [0.50, 0.50]",
            "15 min: 0.50 [0.50, 0.50] (smallest area first, `lend.share` 0.5)",
        ]
    ]
    assert "Most of this is small jobs first" not in with_results(empty, rows), "the rule was not measured as installed"
    rule = lent("saf", "0.1", "0.9", certain="yes", wait="0.69", slurm_wait_h="5.49")
    assert "jobs of Venus wait 3.8 h with it, and 4.0 h with the model." in " ".join(
        with_results(empty, [*rows, rule]).split()
    )
    others = " ".join(with_results(empty, rows).split())
    assert "Not confirmed as installed: Graham, mean wait 0.50 [0.50, 0.50] (nothing is certain); HPC2N" in others
    assert "HPC2N, mean wait 0.50 [0.50, 0.50] (against it: p99 of the wait, GPUs in use)." in others
    assert "Philly" not in others, "its limits tell more than a site knows"
    for none in ([], rows[:1], rows[3:4]):
        assert "No figures stand here until" in with_results(empty, none)
    with pytest.raises(EvaluationError, match="are missing"):
        with_results("no marks\n", [])


def test_the_readme_says_in_hours_how_long_most_jobs_and_the_large_ones_wait():
    def waited(order, gpus, mean, half, tenth):
        named = {"trace": "Venus", "nodes": "64x8", "order": order, "gpus": gpus, "jobs": "2400", "p99_h": "40"}
        return named | {"mean_h": mean, "p50_h": half, "p90_h": tenth}

    hours = [
        waited("multifactor", "all", "5.5", "0.5", "20"),
        waited("multifactor", "1", "1.5", "0.5", "20"),
        waited("multifactor", waits.LARGE, "7.0", "3.0", "20"),
        waited("saf:0.1", "all", "4.0", "0.1", "15.04"),
        waited("rl:0.1", "all", "4.0", "0.001", "15.04"),
        waited("rl:0.1", "1", "0.1", "0.5", "20"),
        waited("rl:0.1", waits.LARGE, "9.0", "4.0", "30"),
    ]
    hours += [
        waited("multifactor", waits.LARGE, "0.5", "0", "0") | {"trace": "Other"},
        waited("rl:0.1", waits.LARGE, "0.6", "0", "0") | {"trace": "Other"},
    ]
    text = " ".join(with_results("".join(README_MARKS), [lent("rl", "0.1", "0.8", certain="yes")], hours).split())
    assert "nine of ten of the 2,400 jobs of Venus start within 15.0 h instead of 20 h**" in text
    assert "GPUs wait 9.0 h in the mean instead of 7.0 h (on Other 36 min instead of 30 min), those of one GPU" in text
    assert "Half start within 4 s, under Slurm alone 30 min" in text
    picture = waits_chart.picture(hours)
    assert picture.count('class="slurm"') == picture.count('class="ours"') == 1 + 3
    assert "Mean wait of 2,400 jobs of Venus on 64 × 8 GPUs" in picture


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A protocol of a tiny trace, and a table and a directory of its own."""
    write_csv(bursts(12), tmp_path / "tiny.csv")
    protocol = lending.Protocol("Tiny", "tiny.csv", "1x1", 12, 2, 12)
    monkeypatch.setattr(lending, "PROTOCOLS", (protocol,))
    monkeypatch.setattr(lending, "SHARES", (0.0, 0.5))
    monkeypatch.setattr(lending, "TABLE", tmp_path / "lending.csv")
    monkeypatch.setattr(lending, "UNFINISHED", tmp_path / "unfinished")
    return tmp_path


def test_lending_is_measured_once_for_each_kind_of_weights_and_pools_both_seeds(tiny, capsys, monkeypatch):
    assert lending.main([str(tiny), "--workers", "1", "--only", "other"]) == 0
    assert lending.kept() == []
    assert lending.main([str(tiny), "--workers", "1"]) == 0
    rows = lending.kept()
    tried = [(row["weights"], row["policy"], row["share"]) for row in rows]
    assert tried == [(by, order, share) for by in lending.WEIGHTS for order in ("saf", "rl") for share in ("0", "0.5")]
    assert {(row["windows"], row["seeds"], row["nodes"]) for row in rows} == {("4", "7 11", "1x1")}
    least = min(rows[:4], key=lambda row: float(row["j"]))
    assert (float(least["share"]), float(least["wait"]) < 0.8, least["harms"]) == (0.5, True, "")
    assert not list((tiny / "unfinished").iterdir())
    assert capsys.readouterr().out.count("trace=Tiny") == len(rows)
    monkeypatch.setattr(lending, "evaluate", None)  # nothing is measured twice
    assert lending.main([str(tiny), "--workers", "1"]) == 0
    assert lending.kept() == rows


def test_the_load_is_what_a_windows_jobs_ask_for_over_what_the_gpus_can_do_while_they_come():
    jobs = jobs_of([0.0, 0.0, 100.0], [9e9, 100.0, 300.0], [2, 1, 2], time_limit=[9e9, 100.0, 200.0])
    (case,) = cases(jobs, Estimates(jobs.time_limit, jobs.run_time), parse_shape("1x2"), (Window(0, 1, 2),), past=1)
    assert case.load == (100 * 1 + 200 * 2) / (100 * 2), "up to the time limit"


def test_an_interrupted_protocol_goes_on_where_it_was(tiny):
    (protocol,) = lending.PROTOCOLS
    jobs = bursts(12)
    with pytest.raises(KeyboardInterrupt):
        lending.measured(protocol, "age", jobs, Recording(stop_after=9), lending.SHARES)
    rest = Recording()
    assert len(lending.measured(protocol, "age", jobs, rest, lending.SHARES)) == 4
    assert len(rest.done) == 2 * 2 * 6 - 9


def test_what_was_measured_of_lending_was_measured_wholly():
    shares = {*map(str, lending.SHARES)}  # beside them, some were measured with further ones
    rows = [row for row in lending.kept() if row["share"] in shares]
    tried = Counter((row["trace"], row["nodes"], row["weights"]) for row in rows)
    assert {trace for trace, _, _ in tried} <= lending.LIMITS.keys()
    for (trace, _, _), count in tried.items():
        assert count == 2 * (1 if lending.LIMITS[trace] == lending.ONE_LIMIT else len(lending.SHARES))


def test_chance_is_how_often_one_of_equal_runs_is_called_less_than_one_other_and_than_two():
    assert chance.wrong(np.array([[1.0] * 9, [2.0] * 9, [3.0] * 9])) == pytest.approx((3 / 6, 2 / 6))
    assert chance.wrong(np.array([[1.0, 3.0] * 9, [2.0, 2.0] * 9, [2.5, 1.0] * 9])) == (0.0, 0.0)


def test_waits_of_all_jobs_and_by_size_are_measured_once(tiny, capsys, monkeypatch):
    monkeypatch.setattr(waits, "PROTOCOLS", lending.PROTOCOLS)
    monkeypatch.setattr(waits, "TABLE", tiny / "waits.csv")
    assert waits.main([str(tiny), "--workers", "1"]) == 0
    rows = waits.kept()
    assert [(row["order"], row["gpus"]) for row in rows] == [
        (one, size) for one in waits.ORDERS for size in ("all", "1")
    ]
    assert {(row["trace"], row["nodes"], row["jobs"]) for row in rows} == {("Tiny", "1x1", "48")}
    assert all(float(row["p25_h"]) <= float(row["p50_h"]) <= float(row["p99_h"]) for row in rows)
    monkeypatch.setattr(waits, "measured", None)  # nothing is measured twice
    assert waits.main([str(tiny), "--workers", "1"]) == 0
    assert capsys.readouterr().out.count("trace=Tiny") == len(rows)
