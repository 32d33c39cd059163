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
from rltuned.evaluate.evaluation_report import comparisons
from rltuned.evaluate.evaluation_settings import AGAIN, POLICIES
from rltuned.policy import files
from rltuned.policy.files import TrainingPart
from studies import fair_share
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
    all_pairs = comparisons(report["windows"], (*RULES, "rl"), report["meta"]["seed"])
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


NUMBERS = (0.5912, 0.518, 0.6754, 0.63, 0.3206, 0.9, 1.03, 0.975, 0.118, 0.363, 0.17, 0.11)
FAIR = dict(zip(fair_share.COLUMNS, ("Venus", "fair-share", "0.02", *map(str, NUMBERS)), strict=True))


def test_where_fair_share_decides_the_page_says_what_is_chance(tmp_path):
    found = collect([], tmp_path, [FAIR, {**FAIR, "weights": "usual", "wait": "0.4"}])
    text = page(found)
    line = next(
        line for line in text.splitlines() if line.startswith("| Venus | fair share decides | 0.59 [0.52, 0.68] |")
    )
    assert line.endswith("| 0.12 (0.36) | 0.17 (0.11) |")
    assert "| Venus | usual | 0.40 [" in text
    readme = with_results("".join(["before\n", *README_MARKS, "after\n"]))
    assert "No figures stand here until" in readme
    with pytest.raises(EvaluationError, match="are missing"):
        with_results("no marks\n")


def test_the_default_budget_was_measured_on_every_trace():
    assert {(row["trace"], row["weights"]) for row in fair_share.by_default()} == {
        (protocol.trace, weights) for protocol in fair_share.PROTOCOLS for weights in ("fair-share", "usual")
    }
