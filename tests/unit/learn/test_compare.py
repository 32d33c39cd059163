"""Two models side by side."""

import json
from dataclasses import replace

import pytest
from unit.evaluate.small import settings
from unit.policy.conftest import actor_of, observation

from rltuned.evaluate.executors import LocalExecutor
from rltuned.learn.compare import differences, likeness, paired
from rltuned.policy import files
from rltuned.policy.heuristics import by_name
from rltuned.policy.manifest import TrainingPart


def saved(directory, name, seed):
    training = TrainingPart(
        method="imitation", data="generated", traces={}, seed=seed, revision="abc", settings={"steps": seed}
    )
    return files.save(actor_of(seed, name), directory, training, {"tau": 0.5}, observation().state[:5])


def test_what_differs_is_named_and_what_does_not_is_not(tmp_path):
    one, two = (files.info(str(saved(tmp_path, name, seed))) for name, seed in (("one", 1), ("two", 2)))
    assert differences(one, one) == {}
    found = differences(one, two)
    assert set(found) == {"name", "sha256", "seed", "settings.steps"}
    assert found["settings.steps"] == (1, 2)
    moved = replace(two, architecture=replace(two.architecture, hidden=(4,)), settings={})
    assert differences(two, moved) == {"architecture.hidden": ([32, 16, 8], [4]), "settings.steps": (2, None)}


def test_a_ranking_is_like_itself_and_the_opposite_of_its_opposite():
    saf = by_name("saf")
    same = likeness(saf, saf, 6, seed=1)
    assert (same.tau, same.same_first) == (1.0, 1.0)
    assert same.states > 2
    away = likeness(saf, Backwards(), 6, seed=1)
    assert (away.tau, away.same_first) == (pytest.approx(-1.0), 0.0)
    near = likeness(saf, by_name("sjf"), 6, seed=1)
    assert 0.3 < near.tau < 1.0


class Backwards:
    """SAF the wrong way round."""

    name = "backwards"

    def score(self, observation):
        return -by_name("saf").score(observation)


def test_two_models_run_the_same_windows_and_are_compared_pairwise(tmp_path):
    lines = [f"{30 * k},{100 + 37 * (k % 11)},{1 + k % 3},u{k % 4}" for k in range(60)]
    trace = tmp_path / "t.csv"
    trace.write_text("\n".join(["submit_time,run_time,num_gpus,user", *lines]) + "\n")
    models = [str(saved(tmp_path, name, seed)) for name, seed in (("one", 1), ("two", 2))]
    asked = settings(trace=str(trace), cluster="2x2", windows=3)
    told = paired(models, ("one", "two"), asked, LocalExecutor(), "revision")
    assert told["meta"]["windows"] == 3
    means = {name: values["wait_mean"] for name, values in told["models"].items()}
    found = told["comparison"]["one/two"]["wait_mean"]
    assert means["one"] != means["two"]
    assert found["ratio"] == pytest.approx(means["one"] / means["two"], abs=1e-5)
    assert found["lo"] <= found["ratio"] <= found["hi"]
    json.dumps(told, allow_nan=False)
    same = paired([models[0], models[0]], ("a", "b"), asked, LocalExecutor(), "revision")
    assert same["comparison"]["a/b"]["wait_mean"] == {"ratio": 1.0, "lo": 1.0, "hi": 1.0}
