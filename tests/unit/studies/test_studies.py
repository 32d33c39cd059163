"""The results page, from tiny real evaluations."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from unit.evaluate.small import Recording, busy_jobs
from unit.policy.conftest import actor_of, golden

import rltuned
from rltuned.errors import EvaluationError
from rltuned.evaluate.bootstrap import Comparison
from rltuned.evaluate.evaluation_report import comparisons
from rltuned.evaluate.evaluation_settings import AGAIN, POLICIES
from rltuned.policy import files
from rltuned.policy.files import TrainingPart
from studies.catalogue import (
    NETWORK,
    NOISY,
    Aims,
    Part,
    Protocol,
    Study,
    Trace,
    protocols,
    studies,
)
from studies.page import collect, page, write
from studies.peers import model, rlscheduler
from studies.run import CODE, Sources, meaning, run
from studies.sheets import LONG_WAIT, sheets
from studies.tables import verdict

TRACE = Trace("tiny", "tiny.csv", "2x4", 14, (NOISY,), Aims(noisy=0.9, multifactor=0.55))
PROTOCOL = Protocol(TRACE, NOISY, easy=False)
RULES = ("fifo-strict", "fifo", "sjf", "saf", "wfp3", "unicep", "f1", "multifactor")
MAIN = Study(PROTOCOL, Part.MAIN, (*RULES, "rl"), "rl")
ORDER = Study(PROTOCOL, Part.ORDER, ("rl",), NETWORK)
PEER = Study(PROTOCOL, Part.PEER, ("rl",), "rlscheduler")
STUDIES = [MAIN, ORDER, PEER]


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


def changed(out, study, change):
    path = out / f"{study.name}.json"
    report = json.loads(path.read_text())
    change(report)
    path.write_text(json.dumps(report))


def scaled(metric, factor):
    """Change of a result: rl has that metric of the first rule in every window, times a factor; others are worse."""

    def change(report):
        for window in report["windows"]:
            found = window["policies"]
            found["saf"][metric] = 1000.0
            for rule in set(RULES) - {"saf"}:
                found[rule][metric] = 4000.0
            found["rl"][metric] = 1000.0 * factor

    return change


def rows_of(out, wanted, sheet, **where):
    """Rows of a sheet of the kept results, those whose columns have these values."""
    results = collect(wanted, out)
    found = next(one for one in sheets(results.of, results.clusters, wanted) if one.name == sheet)
    rows = csv.DictReader(io.StringIO(found.text))
    return [row for row in rows if all(row[column] == value for column, value in where.items())]


def test_the_page_has_the_ratios_of_the_evaluations_and_the_same_bytes_twice(site):
    names, told = worked(site)
    assert names == [MAIN.name, ORDER.name]
    assert any("models/peers/rlscheduler-tiny.json is not trained here yet" in sentence for sentence in told)
    _, out = site
    text = page(collect(STUDIES, out), STUDIES, "images")
    assert text == page(collect(STUDIES, out), STUDIES, "images")
    assert "Not results: made of 3 windows only" in text
    report = json.loads((out / f"{MAIN.name}.json").read_text())
    waits = {rule: report["policies"][rule]["wait_mean"] for rule in RULES if rule != "fifo-strict"}
    best = min(waits, key=waits.get)
    # As rltuned evaluate itself compares them.
    all_pairs = comparisons(report["windows"], (*RULES, "rl"), report["meta"]["seed"])
    for other in (best, "fifo-strict", "fifo", "multifactor"):
        compared = all_pairs[f"rl/{other}"]["wait_mean"]
        (row,) = rows_of(out, STUDIES, "comparisons", policy="rl", over=other, metric="wait_mean")
        for end in ("ratio", "lo", "hi"):
            assert float(row[end]) == pytest.approx(compared[end], rel=1e-5)
    over_best = all_pairs[f"rl/{best}"]["wait_mean"]
    line = next(line for line in text.splitlines() if line.startswith("| tiny, 2 × 4 |"))
    assert f"{over_best['ratio']:.2f} [{over_best['lo']:.2f}, {over_best['hi']:.2f}] | `{best}` |" in line
    assert "rl/saf" in report["comparisons"]
    assert "sjf/saf" not in report["comparisons"]
    # Variants are on the same windows, in the same sheet.
    order = json.loads((out / f"{ORDER.name}.json").read_text())["policies"]["rl"]["wait_mean"]
    (row,) = rows_of(out, STUDIES, "policies", policy="rl, no rollouts")
    assert float(row["wait_mean"]) == pytest.approx(order, rel=1e-5)


def test_nothing_that_is_kept_names_a_path_of_the_machine(site):
    worked(site, [MAIN, ORDER])
    sources, out = site
    text = page(collect(STUDIES, out), STUDIES, "images")
    main, order = ((out / f"{study.name}.json").read_text() for study in (MAIN, ORDER))
    for kept in (text, main, order):
        assert str(sources.traces.parent) not in kept
    assert "--trace tiny.csv --cluster 2x4 --window 14" in main
    assert "--model models/general.json --rollout" in main
    assert '--model models/general.json"' in order


@pytest.mark.parametrize(
    ("factor", "wait", "guard"), [(0.5, "met", "met"), (1.0, "missed", "met"), (2.0, "missed", "missed")]
)
def test_a_target_is_called_met_or_missed_as_it_is(site, factor, wait, guard):
    worked(site, [MAIN])
    _, out = site
    for metric in ("wait_mean", "bsld_mean", "wait_p99"):
        changed(out, MAIN, scaled(metric, factor))
    changed(out, MAIN, scaled("wait_max", factor * 4.0))  # FIFO's are 4,000
    found = {
        (row["metric"], row["over"]): (float(row["ratio"]), float(row["target"]), row["verdict"])
        for row in rows_of(out, STUDIES, "targets", protocol=PROTOCOL.name, model="rl")
    }
    long = factor > 1.2
    assert found == {
        ("wait_mean", "saf"): (factor, 0.9, wait),
        ("bsld_mean", "saf"): (factor, 1.02, guard),
        ("wait_p99", "saf"): (factor, 1.02, guard),
        ("wait_mean", "multifactor"): (factor / 4, 0.55, "met"),
        (LONG_WAIT, "fifo"): (float(long), 0.0, "missed" if long else "met"),
    }
    counted = ("1, 0" if what == "met" else "0, 1" for what in (wait, guard, guard, "met", "missed" if long else "met"))
    text = page(collect(STUDIES, out), STUDIES, "images")
    assert f"| rl | {' | '.join(counted)} |" in text


def test_an_interval_that_reaches_over_the_target_is_said():
    assert verdict(Comparison(0.89, 0.85, 0.93), 0.9) == "met, not certain"
    assert verdict(Comparison(0.91, 0.85, 0.93), 0.9) == "missed, not certain"
    assert verdict(Comparison(0.89, 0.85, 0.90), 0.9) == "met"
    assert verdict(Comparison(0.95, 0.91, 0.99), 0.9) == "missed"
    assert verdict(Comparison(0.8, None, None), 0.9) == "met, not certain"
    assert verdict(Comparison(None, None, None), 0.9) == "cannot be told"


def test_an_unchanged_study_is_not_run_again_and_one_with_another_model_trace_or_number_of_windows_is(site):
    wanted = [MAIN, ORDER]
    sources, out = site
    assert worked(site, wanted)[0] == [MAIN.name, ORDER.name]
    before = (out / f"{MAIN.name}.json").read_bytes()
    assert worked(site, wanted) == ([], [f"{MAIN.name}: unchanged", f"{ORDER.name}: unchanged"])
    assert (out / f"{MAIN.name}.json").read_bytes() == before
    trained(sources.models, "general", seed=5)
    names, told = worked(site, wanted)
    assert names == [MAIN.name, ORDER.name]
    assert told[0] == f"{MAIN.name}: run again: changed policies"
    (sources.traces / "tiny.csv").write_text((sources.traces / "tiny.csv").read_text() + "99999,10,1\n")
    assert worked(site, [ORDER])[1] == [f"{ORDER.name}: run again: changed trace"]
    assert worked(site, [ORDER], windows=2)[1] == [f"{ORDER.name}: run again: changed command"]


def test_a_peer_is_measured_when_it_comes_on_the_same_windows_under_its_own_name(site):
    sources, out = site
    assert worked(site)[0] == [MAIN.name, ORDER.name]
    model.save(rlscheduler.fresh(1, "rlscheduler-tiny"), sources.models / "peers", {}, {})
    assert worked(site)[0] == [PEER.name]
    report = json.loads((out / f"{PEER.name}.json").read_text())
    assert report["meta"]["policies"]["rlscheduler"]["model"]["name"] == "rlscheduler-tiny"
    assert means(out, PEER, "rlscheduler").tolist() != means(out, ORDER).tolist()
    assert rows_of(out, STUDIES, "policies", policy="rlscheduler", kind="peer")
    (row,) = rows_of(out, STUDIES, "comparisons", policy="rlscheduler", over=NETWORK, metric="wait_mean")
    ratio = means(out, PEER, "rlscheduler").mean() / means(out, ORDER).mean()
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
        worked(site, [ORDER])
    assert list(site[1].iterdir()) == [], "nor what it could be taken up from"


def test_results_of_other_windows_are_not_put_side_by_side(site):
    worked(site, [MAIN])
    worked(site, [ORDER], windows=2)
    with pytest.raises(EvaluationError, match="other windows"):
        collect(STUDIES, site[1])


def test_a_study_is_run_again_when_the_code_is_another(site, monkeypatch):
    worked(site, [ORDER])
    monkeypatch.setattr("studies.run.code", lambda: "other code")
    assert worked(site, [ORDER]) == ([ORDER.name], [f"{ORDER.name}: run again: changed code"])


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
    text = page(collect(wanted, tmp_path), wanted, "images")
    assert "Nothing has been measured yet" in text
    assert "142,391" in text
    assert "met, missed" not in text


def test_the_page_and_its_box_plots_are_written(site):
    worked(site, [MAIN])
    _, out = site
    write(collect(STUDIES, out), STUDIES, out / "results.md", out / "images" / "results")
    text = (out / "results.md").read_text()
    linked = re.findall(r"\]\((results/\w+\.csv)\)", text)
    assert len(linked) > 4
    assert all((out / path).stat().st_size for path in linked)
    for metric in ("wait_mean", "bsld_mean"):
        assert f"](images/results/{PROTOCOL.name}/{metric}.png)" in text
    assert sorted(path.name for path in (out / "images/results" / PROTOCOL.name).iterdir()) == [
        "bsld_mean.png",
        "wait_mean.png",
    ]


def test_the_catalogue_has_the_targets_of_the_yardstick_and_names_each_study_once():
    wanted = list(studies())
    names = [study.name for study in wanted]
    assert len(set(names)) == len(names)
    assert {policy for study in wanted for policy in study.policies} == set(POLICIES) - {AGAIN}
    aimed = {protocol.name: protocol.wait for protocol in protocols()}
    where = ("philly-20x8", "philly-4x8", "venus-16x8", "pai-8x8")
    assert [aimed[f"{name}-noisy"] for name in where] == [0.92, 0.92, 0.94, 0.87]
    assert [aimed[f"{name}-noisy-easy"] for name in where] == [0.86, 0.86, 0.87, 0.88]
    assert [aimed[f"{name}-true"] for name in where] == [aimed[f"{name}-true-easy"] for name in where]
    assert [aimed[f"{name}-true"] for name in where] == [0.9, 0.9, 0.92, 0.94]
    beside = {protocol.name: protocol.multifactor for protocol in protocols()}
    assert [beside[f"{name}-noisy"] for name in where] == [0.36, 0.36, 0.42, 0.26]
    assert {beside[f"{name}-{rest}"] for name in where for rest in ("true", "true-easy", "noisy-easy")} == {None}
    for protocol in protocols():
        asked = protocol.settings(("fifo",), 30)
        assert str(asked.split) == "test"
        assert np.isfinite(asked.window)
