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
from unit.rank.conftest import actor_of, golden, observation

from rltuned.core.errors import ModelError
from rltuned.decide.rank.actor import RUN_TIME
from rltuned.decide.see.observation import STATE_COLUMNS
from rltuned.records import model_files as files
from rltuned.records.model_files import MAX_MANIFEST_BYTES, MAX_WEIGHTS_BYTES, TrainingPart

TRAINING = TrainingPart(method="imitation", data="generated", traces={}, seed=1, revision="abc", settings={"steps": 10})
EXPECTED = {RUN_TIME: np.array([0.5, 0.25, 0.5], np.float32)}


def save(directory, metrics=None, **weights):
    """The actor, and the path of its manifest."""
    actor = actor_of(**weights)
    return actor, files.save(actor, directory, TRAINING, metrics or {"tau": 0.5}, golden(actor))


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


@pytest.mark.parametrize("shape", [{}, {"hidden": 0}, {"hidden": 20}, EXPECTED], ids=str)
def test_a_saved_model_scores_as_before(shape, tmp_path):
    seen = observation()
    actor, path = save(tmp_path, **shape)
    again = files.load(str(path))
    assert (again.name, again.hidden) == ("small", actor.hidden)
    assert sorted(again.weights) == sorted(actor.weights)
    assert np.array_equal(again.score(seen), actor.score(seen))
    assert np.array_equal(
        again.expected_run_time(seen.run_time, seen.time_limit), actor.expected_run_time(seen.run_time, seen.time_limit)
    )


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
    assert (told.hidden, told.format_version) == (6, 2)
    assert told.columns == STATE_COLUMNS
    assert told.summary == actor_of().summary


def test_verify_says_what_was_checked(model):
    _, found = files.verify(str(model))
    assert [*found] == ["files", "format", "features", "sha256", "weights", "golden"]


def set_key(*keys, value):
    def change(tree):
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_key("format_version", value=1), "format version 1; this release reads version 2"),
        (set_key("format_version", value=3), "format version 3; this release reads version 2"),
        (set_key("format_version", value="2"), "format_version"),
        (set_key("format", value="keras"), "format"),
        (set_key("unknown", value=1), "unknown"),
        (lambda tree: tree.pop("golden"), "golden"),
        (lambda tree: tree["features"].reverse(), "made for the features job_urgency"),
        (lambda tree: tree["features"].pop(), "made for the features"),
        (lambda tree: tree["features"].__setitem__(6, "job_size"), "made for the features .*job_size"),
        (lambda tree: tree["moment"].reverse(), "made for the moment idle"),
        (lambda tree: tree["moment"].append("hour"), "made for the moment .*hour; this release has"),
        (set_key("name", value="../evil"), "name '../evil'"),
        (set_key("weights", "file", value="../small.safetensors"), r"the weights must be small\.safetensors"),
        (set_key("weights", "file", value="/etc/shadow"), r"the weights must be small\.safetensors"),
        (set_key("weights", "sha256", value="0" * 64), "sha256 is"),
        (set_key("hidden", value=5), r"tensor kernel is float32 \(14, 6\), not float32 \(14, 5\)"),
        (set_key("hidden", value=-1), "hidden"),
        (set_key("hidden", value=10**9), "hidden"),
        (set_key("hidden", value=True), "hidden"),
        (set_key("golden", "scores", value=[0.0] * 4), "a score for each row"),
        (set_key("golden", "scores", value=[0.0] * 5), "misses its golden scores by"),
        (set_key("golden", "moment", value=[0.0] * 13), "a moment of 14"),
        (set_key("golden", "moment", value=[0.9] * 14), "misses its golden scores"),
        (set_key("golden", "terms", value=[]), "golden.terms"),
        (set_key("golden", "terms", value=[[0.0] * 7] * 5), "rows of 8 numbers"),
        (set_key("golden", "terms", value=[[0.0] * 8] * 4 + [[]]), "rows of 8 numbers"),
        (set_key("golden", "terms", value=[[0.0] * 8] * 257), "golden.terms"),
        (set_key("golden", "terms", value=[[1e39] + [0.0] * 7] * 5), "misses its golden scores"),
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
        (lambda t: t.pop("bias"), "tensor bias is missing"),
        (lambda t: t.update(extra=np.zeros(1, np.float32)), "tensor extra belongs to no actor"),
        (lambda t: t.update({RUN_TIME: np.zeros(2, np.float32)}), r"run_time.coefficients is float32 \(2,\)"),
        (
            lambda t: t.update({RUN_TIME: np.full(3, np.nan, np.float32)}),
            "run_time.coefficients has values that are not finite",
        ),
        (lambda t: t.update(constant=np.zeros(7, np.float32)), r"constant is float32 \(7,\)"),
        (lambda t: t.update(constant=np.zeros(8, np.float64)), "constant is float64"),
        (lambda t: t.update(change=np.full((6, 8), np.nan, np.float32)), "change has values that are not finite"),
        (lambda t: t.update(kernel=np.full((14, 6), np.inf, np.float32)), "kernel has values that are not finite"),
        (lambda t: t.update(constant=t["constant"] + np.float32(1e-4)), "misses its golden scores"),
        (lambda t: t.update(constant=np.full(8, 3e38, np.float32)), "misses its golden scores"),
    ],
)
def test_weights_that_are_wrong_are_refused_even_with_the_right_sha256(model, change, reason):
    reweigh(model, change)
    with pytest.raises(ModelError, match=reason) as refused:
        files.load(str(model))
    assert str(model) in str(refused.value)


def test_a_small_rounding_difference_is_not_refused(model):
    reweigh(model, lambda t: t.update(constant=t["constant"] + np.float32(1e-6)))
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
        (lambda m: m.write_text('{"format_version": 2, "format_version": 2}'), "a key is given twice"),
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


@pytest.mark.parametrize(
    "name", ["../general", "models/general.json", "/tmp/general.safetensors", "", "General", "a\0b"]
)
def test_only_names_and_absolute_manifest_paths_are_taken(name):
    with pytest.raises(ModelError, match="neither the name of a shipped model nor the absolute path"):
        files.load(name)


def test_an_unknown_name_is_answered_with_those_that_are_shipped():
    with pytest.raises(ModelError, match=r"no shipped model 'other'; there are: .*general"):
        files.load("other")


def test_an_unwritable_directory_is_a_model_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        save(blocked)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"bias": np.full(6, np.nan, np.float32)}, "bias is not finite"),
        ({"extra": np.zeros(3, np.float32)}, "extra belongs to no actor"),
        ({"metrics": {"tau": np.inf}}, "tau is not finite"),
    ],
)
def test_a_model_that_would_be_refused_is_not_written(tmp_path, wrong, reason):
    with pytest.raises(ModelError, match=reason):
        save(tmp_path, **wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cut", [(np.s_[:, :7], np.s_[:]), (np.s_[0], np.s_[:]), (np.s_[:], np.s_[:13])])
def test_a_golden_vector_of_another_width_is_refused_before_anything_is_written(tmp_path, cut):
    terms, moment = golden(actor_of())
    with pytest.raises(ModelError, match="rows of 8 numbers, a moment of 14"):
        files.save(actor_of(), tmp_path, TRAINING, {}, (terms[cut[0]], moment[cut[1]]))
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
