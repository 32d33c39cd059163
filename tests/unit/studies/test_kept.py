"""The kept results: enough for all that is made from them, each line a whole thing."""

import json
from pathlib import Path

from unit.evaluate.small import report

from rltuned.lab.evaluate.window_metrics import COMPARED
from studies import clusters, kept, lending, waits, waits_chart
from studies.catalogue import studies
from studies.page import collect, page, with_results
from studies.sheets import sheets

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "studies" / "results"
STUDIES = list(studies())


def test_the_committed_page_and_its_data_are_made_of_the_kept_results():
    results = collect(STUDIES, RESULTS, lending.kept(), waits.kept())
    text = page(results)
    assert (ROOT / "docs" / "results.md").read_text() == text, "renew it: make pages"
    made = {f"{sheet.name}.csv": sheet.text for sheet in sheets(results.of, results.clusters)}
    assert {path.name: path.read_text() for path in (ROOT / "docs" / "results").iterdir()} == made, "make pages"


def test_what_the_readme_says_of_results_is_made():
    text = (ROOT / "README.md").read_text()
    assert with_results(text, lending.kept(), waits.kept()) == text, "renew it: make pages"


def test_the_committed_picture_is_made_of_the_kept_waits():
    assert (ROOT / "docs" / "images" / "waits.svg").read_text() == waits_chart.picture(waits.kept()), "make pages"


def test_every_kept_result_is_of_a_study_and_in_the_form_that_is_written():
    names = {f"{study.name}.json" for study in STUDIES}
    for path in RESULTS.iterdir():
        if path.name.startswith(clusters.PREFIX) or path.suffix == ".state":
            continue  # an A/B; a study that is under way
        assert path.name in names, f"{path}: no study makes it"
        result = json.loads(path.read_text())
        assert kept.text(kept.slim(result)) == path.read_text(), path


def test_a_kept_result_has_every_number_of_the_report_and_few_lines():
    whole = report(policies=("fifo", "saf", "rl"))
    result = json.loads(kept.text(kept.slim(whole)))
    for before, after in zip(whole["windows"], result["windows"], strict=True):
        assert before["start"] == after["start"]
        for name, values in before["policies"].items():
            assert after["policies"][name] == {metric: values[metric] for metric in COMPARED}
    assert {**result, "windows": 0, "comparisons": 0} == json.loads(
        json.dumps({**whole, "windows": 0, "comparisons": 0})
    )
    assert list(result["comparisons"]) == ["rl/fifo", "rl/saf"]
    assert max(map(len, kept.text(result).splitlines())) < kept.LINE + 40
