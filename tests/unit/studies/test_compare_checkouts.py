"""A comparison finds every number that changed, and nothing else."""

import copy
from pathlib import Path

import pytest

from studies.compare_checkouts import Comparison, main

ROOT = Path(__file__).resolve().parents[3]
BEFORE = {
    "rollout_trouble": {"tried": 3, "gain": 0.1},
    "jobs": [{"id": 7, "rank": 0}, {"id": 8, "rank": 1}],
    "policy": {"name": "sjf", "what": "A rule."},
    "seconds": 0.25,
}
AFTER = {
    "policy": {"what": "The rule.", "name": "sjf"},
    "forecast_trouble": {"tried": 3, "gain": 0.1},
    "jobs": [{"id": 7, "rank": 0}, {"id": 8, "rank": 1}],
    "seconds": 0.5,
}


def compared(change=None):
    after = copy.deepcopy(AFTER)
    if change:
        change(after)
    found = Comparison()
    found.compare(BEFORE, after)
    return found


def test_names_order_times_and_sentences_may_differ():
    assert compared().sentence() == "equal, 7 values"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda after: after["jobs"][1].update(rank=2), "jobs[1].rank: 1 before, 2 after"),
        (
            lambda after: after["forecast_trouble"].update(gain=0.1 + 2e-17),
            "forecast_trouble.gain: 0.1 before, 0.10000000000000002 after",
        ),
        (lambda after: after["forecast_trouble"].update(tried=3.0), "forecast_trouble.tried: 3 before, 3.0 after"),
        (lambda after: after["jobs"].pop(), 'jobs: [{"id": 7, "rank": 0}, {"id": 8, "rank": 1}] before, [{"id": 7'),
        (lambda after: after["policy"].pop("name"), "policy.name: only before"),
    ],
)
def test_a_number_that_changed_is_named(change, said):
    found = compared(change)
    assert len(found.different) == 1
    assert found.different[0].startswith(said)
    assert found.sentence().startswith("DIFFERENT in 1 of ")


def test_a_new_field_is_named_and_is_no_difference():
    assert (
        compared(lambda after: after["forecast_trouble"].update(trouble="")).sentence()
        == "equal, 7 values; new: trouble"
    )


def test_what_is_no_checkout_is_refused(tmp_path, capsys):
    assert main([str(tmp_path), str(ROOT)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
