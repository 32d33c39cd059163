"""The model card, from a manifest and a small real evaluation."""

import copy
import json

import pytest
from unit.evaluate.small import busy_jobs, report
from unit.policy.conftest import actor_of, observation

from rltuned.errors import EvaluationError
from rltuned.evaluate.card import card, read_report
from rltuned.policy import files
from rltuned.policy.actor import rule_level
from rltuned.policy.manifest import TrainingPart

TRAINING = TrainingPart(
    method="ppo", data="a trace of ours", traces={"t.csv.gz": "ab" * 32}, seed=3, revision="abc", settings={"steps": 10}
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Path of the manifest of a model that corrects SAF."""
    seen = observation()
    where = tmp_path_factory.mktemp("model")
    return files.save(
        actor_of(residual="saf"), where, TRAINING, {"x": 0.5}, seen.state[:5], rule_level("saf", seen)[:5]
    )


@pytest.fixture(scope="module")
def info(model):
    return files.info(str(model))


@pytest.fixture(scope="module")
def measured(model):
    return report(busy_jobs(60), model=str(model), policies=("fifo", "saf", "multifactor", "rl"), estimates="noisy:1.5")


def test_the_same_files_give_the_same_card_which_says_data_protocol_and_results(info, measured):
    text = card(info, [measured])
    assert text == card(info, [json.loads(json.dumps(measured))])
    for said in (
        "`t.csv.gz`, sha256 `abab",
        "Method: ppo, seed 3",
        "the plain rule saf; the network corrects that by up to a factor of e^3.7 in the key",
        "4 windows of 20 jobs",
    ):
        assert said in text
    assert f"    {measured['meta']['command']}\n" in text
    own = measured["policies"]["rl"]
    assert f"| rl | {own['wait_mean']:,.0f} s | {own['bsld_mean']:,.1f} |" in text
    against = measured["comparisons"]["rl/multifactor"]["wait_mean"]
    line = next(line for line in text.splitlines() if line.startswith("| against multifactor"))
    assert f"{100 * (against['ratio'] - 1):+.1f} %".replace("-", "−") in line


def losing(measured, ratio, lo, hi):
    """The report, had the model lost its mean wait to SAF and won everything else."""
    made = copy.deepcopy(measured)
    for pair, metrics in made["comparisons"].items():
        if pair.startswith("rl/"):
            for metric in metrics:
                metrics[metric] = {"ratio": 0.8, "lo": 0.7, "hi": 0.9}
    made["comparisons"]["rl/saf"]["wait_mean"] = {"ratio": ratio, "lo": lo, "hi": hi}
    return made


def test_a_loss_is_told_and_a_win_is_not_called_one(info, measured):
    certain = card(info, [losing(measured, 1.2, 1.1, 1.3)]).split("## Where it loses")[1]
    assert "Certainly" in certain
    assert "mean wait +20.0 % [+10.0, +30.0] against saf" in certain
    assert certain.count("\n- ") == 1
    likely = card(info, [losing(measured, 1.2, 0.9, 1.3)]).split("## Where it loses")[1]
    assert "Nowhere certainly" in likely
    assert likely.count("\n- ") == 1
    never = card(info, [losing(measured, 0.9, 0.8, 1.01)]).split("## Where it loses")[1]
    assert "- " not in never


def test_a_card_without_an_evaluation_does_not_claim_that_it_never_loses(info):
    assert "Not known: nothing was measured." in card(info, [])


def test_a_report_about_other_weights_or_about_no_model_is_refused(info, measured, tmp_path):
    other = copy.deepcopy(measured)
    other["meta"]["policies"]["rl"]["model"]["sha256"] = "0" * 64
    with pytest.raises(EvaluationError, match="other weights"):
        card(info, [other])
    del other["meta"]["policies"]["rl"]
    with pytest.raises(EvaluationError, match="add rl to its --policies"):
        card(info, [other])
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[1]")
    with pytest.raises(EvaluationError, match=r"wrong\.json: not a report"):
        read_report(wrong)
