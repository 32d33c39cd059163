"""Model files: what is written is read back, and everything else is refused with file and reason."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.policy.conftest import actor_of, observation

from rltuned.errors import ModelError
from rltuned.policy import files
from rltuned.policy.actor import AGEING, RUN_TIME, rule_level
from rltuned.policy.files import MAX_MANIFEST_BYTES, MAX_WEIGHTS_BYTES, TrainingPart

TRAINING = TrainingPart(method="imitation", data="generated", traces={}, seed=1, revision="abc", settings={"steps": 10})


def save(directory, metrics=None, extras=None, **architecture):
    """The actor, and the path of its manifest."""
    seen, actor = observation(), actor_of(**architecture)
    actor.weights.update(extras or {})
    residual = actor.architecture.residual
    base = None if residual is None else rule_level(residual, seen)[:5]
    return actor, files.save(actor, directory, TRAINING, metrics or {"tau": 0.5}, seen.state[:5], base)


@pytest.fixture
def model(tmp_path):
    """Path of a good model's manifest."""
    return save(tmp_path)[1]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Manifest and weights of a good model."""
    return files.read(str(save(tmp_path_factory.mktemp("good"))[1])).content


def rewrite(path: Path, change):
    """Change the manifest's JSON in place."""
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def reweigh(path: Path, change):
    """Change the tensors, and the manifest's sha256 with them, so that only what they are can be wrong."""
    weights = path.with_suffix(".safetensors")
    tensors = safetensors.numpy.load(weights.read_bytes())
    change(tensors)
    replace_weights(path, safetensors.numpy.save(tensors))


def replace_weights(path: Path, data: bytes):
    path.with_suffix(".safetensors").write_bytes(data)
    rewrite(path, lambda tree: tree["weights"].update(sha256=hashlib.sha256(data).hexdigest()))


EXTRAS = {RUN_TIME: np.array([0.5, 0.25, 0.5], np.float32), AGEING: np.array([0.3], np.float32)}


@pytest.mark.parametrize(
    "shape", [{}, {"context": True}, {"residual": "saf", "hidden": (4,)}, {"extras": EXTRAS}], ids=str
)
def test_a_saved_model_scores_as_before(shape, tmp_path):
    seen = observation()
    actor, path = save(tmp_path, **shape)
    again = files.load(str(path))
    assert (again.name, again.architecture) == ("small", actor.architecture)
    assert sorted(again.weights) == sorted(actor.weights)
    assert np.array_equal(again.score(seen), actor.score(seen))
    assert np.array_equal(
        again.expected_run_time(seen.run_time, seen.time_limit), actor.expected_run_time(seen.run_time, seen.time_limit)
    )
    assert again.ageing == actor.ageing


def test_saving_twice_gives_the_same_bytes_and_leaves_nothing_else(model, tmp_path):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"small.json", "small.safetensors"}


def test_info_tells_how_a_model_was_made(model):
    told = files.info(str(model))
    assert (told.name, told.method, told.seed, told.revision) == ("small", "imitation", 1, "abc")
    assert told.settings == {"steps": 10}
    assert told.metrics == {"tau": 0.5}
    assert told.architecture.parameters == 8 * 32 + 32 + 32 * 16 + 16 + 16 * 8 + 8 + 8 + 1


def test_verify_says_what_was_checked(model):
    names = [check.name for check in files.verify(str(model)).checks]
    assert names == ["files", "format", "features", "sha256", "weights", "golden"]


def set_key(*keys, value):
    def change(tree):
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_key("format_version", value=2), "format version 2; this release reads version 1"),
        (set_key("format", value="keras"), "format"),
        (set_key("unknown", value=1), "unknown"),
        (lambda tree: tree.pop("golden"), "golden"),
        (lambda tree: tree["features"].reverse(), "made for the features job_urgency"),
        (lambda tree: tree["features"].pop(), "made for the features"),
        (set_key("name", value="../evil"), "name '../evil'"),
        (set_key("weights", "file", value="../small.safetensors"), r"the weights must be small\.safetensors"),
        (set_key("weights", "file", value="/etc/shadow"), r"the weights must be small\.safetensors"),
        (set_key("weights", "sha256", value="0" * 64), "sha256 is"),
        (set_key("architecture", "hidden", value=[32, 16]), "tensor layer2.kernel is float32|does not belong"),
        (set_key("architecture", "hidden", value=[32, 16, 9]), "tensor layer2.kernel is float32"),
        (set_key("architecture", "hidden", value=[10**9]), "architecture.hidden.0"),
        (set_key("architecture", "activation", value="exec"), "architecture.activation"),
        (set_key("architecture", "activation", value="tanh"), "misses its golden scores"),
        (set_key("architecture", "context", value=True), "tensor context.kernel is missing"),
        (
            set_key("architecture", "residual", value="lifo"),
            "corrects the rule 'lifo'; this release can correct saf, sjf",
        ),
        (set_key("architecture", "residual", value="fifo"), "corrects the rule 'fifo'; this release"),
        (set_key("architecture", "residual", value="saf"), "a base exactly for a residual"),
        (set_key("normalisers", "scale", value=[0.0] * 8), "normalisers.scale.0"),
        (set_key("normalisers", "scale", value=[1e-60] * 8), "a scale is 0"),
        (set_key("normalisers", "mean", value=[1e60] * 8), "do not fit into float32"),
        (set_key("normalisers", "mean", value=[0.0] * 7), "must all have 8 numbers"),
        (set_key("normalisers", "mean", value=[0.25] * 8), "misses its golden scores"),
        (set_key("golden", "scores", value=[0.0] * 4), "one score for each row"),
        (set_key("golden", "scores", value=[0.0] * 5), "misses its golden scores by"),
        (set_key("golden", "state", value=[]), "golden.state"),
        (set_key("training", "seed", value="7"), "training.seed"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(model, change, reason):
    rewrite(model, change)
    with pytest.raises(ModelError, match=reason) as refused:
        files.load(str(model))
    assert str(model) in str(refused.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("layer0.bias"), "tensor layer0.bias is missing"),
        (lambda t: t.update(extra=np.zeros(1, np.float32)), "tensor extra does not belong"),
        (lambda t: t.update({RUN_TIME: np.zeros(2, np.float32)}), r"run_time.coefficients is float32 \(2,\)"),
        (
            lambda t: t.update({RUN_TIME: np.full(3, np.nan, np.float32)}),
            "run_time.coefficients has values that are not finite",
        ),
        (lambda t: t.update({AGEING: np.full(1, -0.1, np.float32)}), "rule.ageing is negative"),
        (lambda t: t.update({"layer0.bias": np.zeros(31, np.float32)}), r"layer0.bias is float32 \(31,\)"),
        (lambda t: t.update({"layer0.bias": np.zeros(32, np.float64)}), "layer0.bias is float64"),
        (
            lambda t: t.update({"layer0.bias": np.full(32, np.nan, np.float32)}),
            "layer0.bias has values that are not finite",
        ),
        (
            lambda t: t.update({"layer3.bias": np.full(1, np.inf, np.float32)}),
            "layer3.bias has values that are not finite",
        ),
        (lambda t: t.update({"layer3.bias": t["layer3.bias"] + 2e-5}), "misses its golden scores"),
        (lambda t: t.update({"layer0.kernel": t["layer0.kernel"] * 3e37}), "misses its golden scores"),
    ],
)
def test_weights_that_are_wrong_are_refused_even_with_the_right_sha256(model, change, reason):
    reweigh(model, change)
    with pytest.raises(ModelError, match=reason) as refused:
        files.load(str(model))
    assert str(model) in str(refused.value)


def test_a_small_rounding_difference_is_not_refused(model):
    reweigh(model, lambda t: t.update({"layer3.bias": t["layer3.bias"] + 2e-6}))
    assert files.load(str(model)).name == "small"


def weights_of(path: Path):
    return path.with_suffix(".safetensors")


def link(path: Path):
    path.symlink_to(path.rename(path.with_name("elsewhere")))


def pipe(path: Path):
    path.unlink()
    os.mkfifo(path)


def directory(path: Path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda m: m.write_text(""), "not a JSON manifest"),
        (lambda m: m.write_text("[" * 100_000), "not a JSON manifest"),
        (lambda m: m.write_text("[]"), "manifest"),
        (lambda m: m.write_text('{"format_version": 1, "format_version": 1}'), "a key is given twice"),
        (lambda m: m.write_text('{"metrics": NaN}'), "NaN is not a number"),
        (lambda m: m.write_bytes(m.read_text().encode("utf-16")), "not a JSON manifest"),
        (lambda m: m.write_text(m.read_text() + " " * MAX_MANIFEST_BYTES), r"small\.json: larger than"),
        (
            lambda m: weights_of(m).write_bytes(b"\0" * (MAX_WEIGHTS_BYTES + 1)),
            r"small\.safetensors: larger than 4194304 bytes",
        ),
        (link, r"small\.json: a symbolic link"),
        (lambda m: link(weights_of(m)), r"small\.safetensors: a symbolic link"),
        (lambda m: pipe(weights_of(m)), "not a regular file"),  # and nobody waits for its writer
        (lambda m: directory(weights_of(m)), "not a regular file"),
        (Path.unlink, r"small\.json: cannot be read: No such file"),
        (lambda m: weights_of(m).unlink(), r"small\.safetensors: cannot be read: No such file"),
        *(
            (lambda m, keep=keep: weights_of(m).write_bytes(weights_of(m).read_bytes()[:keep]), "sha256 is")
            for keep in (0, 7, 100, -1)
        ),
        *(
            (lambda m, keep=keep: replace_weights(m, weights_of(m).read_bytes()[:keep]), "not a safetensors file")
            for keep in (0, 7, 100, -1)
        ),
    ],
)
def test_files_that_are_no_model_are_refused(model, damage, reason):
    damage(model)
    with pytest.raises(ModelError, match=reason):
        files.load(str(model))


@pytest.mark.parametrize("name", ["../base", "models/base.json", "/tmp/base.safetensors", "", "Base", "a\0b"])
def test_only_names_and_absolute_manifest_paths_are_taken(name):
    with pytest.raises(ModelError, match="neither the name of a shipped model nor the absolute path"):
        files.load(name)


def test_an_unknown_name_is_answered_with_those_that_are_shipped():
    with pytest.raises(ModelError, match=r"no shipped model 'other'; there are: .*base"):
        files.load("other")


def test_an_unwritable_directory_is_a_model_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        save(blocked)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"extras": {"layer0.bias": np.full(32, np.nan, np.float32)}}, r"layer0\.bias is not finite"),
        ({"extras": {AGEING: np.array([-1.0], np.float32)}}, "rule.ageing is negative"),
        ({"metrics": {"tau": np.inf}}, "tau is not finite"),
    ],
)
def test_a_model_that_would_be_refused_is_not_written(tmp_path, wrong, reason):
    with pytest.raises(ModelError, match=reason):
        save(tmp_path, **wrong)
    assert not list(tmp_path.iterdir())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_mean_the_same(good, data):
    manifest, weights = map(bytearray, good)
    which = data.draw(st.sampled_from([manifest, weights]))
    for _ in range(data.draw(st.integers(1, 4))):
        which[data.draw(st.integers(0, len(which) - 1))] = data.draw(st.integers(0, 255))
    if which is weights:  # past the sha256, into the safetensors reader
        tree = json.loads(good[0])
        tree["weights"]["sha256"] = hashlib.sha256(weights).hexdigest()
        manifest = bytearray(json.dumps(tree).encode())
    try:
        parsed = files.parse(Path("damaged.json"), bytes(manifest), bytes(weights))
    except ModelError as error:
        assert "damaged.json" in str(error)  # noqa: PT017 - acceptance is the other good outcome
    else:
        assert parsed.golden_error <= 1e-5
