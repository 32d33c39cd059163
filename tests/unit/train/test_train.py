"""From a trace to a model file: the curriculum, the run directory, killed and resumed, and the command."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from operator import call

import numpy as np
import pytest
from click.testing import CliRunner
from unit.evaluate.small import busy_jobs
from unit.evaluate.test_gate import cooked
from unit.slurm.standin import CONFIG, StandIn
from unit.train.windows import SMALL, case_of

from rltuned.cli.main import cli
from rltuned.core.config import SlurmSection
from rltuned.core.errors import ConfigError, EvaluationError
from rltuned.core.objective import Objective
from rltuned.core.workers.pool import WorkerPool
from rltuned.core.workers.progress import silent
from rltuned.decide.rank.actor import RUN_TIME
from rltuned.lab.evaluate.windows import Split, bounds
from rltuned.lab.train import command
from rltuned.lab.train.curriculum import (
    CurriculumSettings,
    Site,
    candidate,
    run_time_coefficients,
    smallest_area_first,
    validation_windows,
    with_limits,
    with_predictions,
)
from rltuned.lab.train.evolution import EvolutionSettings
from rltuned.lab.train.run_directory import RunDirectory
from rltuned.lab.train.sampling import episode, in_slurms_order
from rltuned.lab.train.training_settings import TrainSettings
from rltuned.records import model_files as files
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.write import write_csv
from rltuned.slurm.commands import SEPARATOR

pytestmark = pytest.mark.learn


def train(*args, **values):
    pytest.importorskip("tensorflow")
    from rltuned.lab.train.training import train

    return train(*args, **values)


def site() -> Site:
    return Site(busy_jobs(200), parse_shape("2x4"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One whole small run, for all who only look at it."""
    out = tmp_path_factory.mktemp("run")
    return train([site()], SMALL, out, command="rltuned train …", revision="abc"), out


def test_training_goes_on_from_a_model_and_keeps_it_where_nothing_is_better(tmp_path):
    model = cooked(tmp_path, "good", requested_time=-1.0, requested_gpus=-0.5, time_to_free=-1.0)
    asked = replace(SMALL, begin=model, steps=(1, 0), evolution=EvolutionSettings(pairs=2, windows=3, rate=0.0))
    found, begun = train([site()], asked, tmp_path / "on"), files.info(model)
    assert (found.step, found.validation.ratios["objective"] < 0.97) == (0, True)
    assert {k: w.tolist() for k, w in files.load(str(found.path)).weights.items()} == {
        k: w.tolist() for k, w in files.load(model).weights.items()
    }
    made = files.info(str(found.path))
    assert made.name == "small"
    assert made.method == f"from good {begun.sha256[:12]}: evolution strategy"
    assert made.traces == {**begun.traces, "by hand": "0" * 64}


def test_windows_are_of_the_training_part_and_of_their_number_alone():
    settings = CurriculumSettings(window=(20, 60), estimates="mixed")
    jobs = busy_jobs(400)
    found = [candidate([Site(jobs, parse_shape("2x4"))], settings, 1, index) for index in range(60)]
    _, last = bounds(400, Split.TRAIN)
    assert max(case.window.start + case.window.jobs for case in found) <= last
    assert len({case.window.jobs for case in found}) > 10
    again = candidate([Site(jobs, parse_shape("2x4"))], settings, 1, 7)
    assert np.array_equal(again.jobs.submit_time, found[7].jobs.submit_time)
    assert np.array_equal(again.estimates.run_time, found[7].estimates.run_time)
    sizes = {int(case.shape.nodes.usable.sum()) for case in found}
    assert max(sizes) == 2
    exact = [np.array_equal(case.estimates.run_time, np.maximum(case.jobs.run_time, 1.0)) for case in found]
    assert 0 < sum(exact) < len(found)


def test_load_is_scaled_by_when_jobs_come_and_by_nothing_else():
    jobs = busy_jobs(400)
    settings = CurriculumSettings(window=(30, 30), load=(1.5, 1.5), drained=(0.0, 0.0), estimates="true")
    case = candidate([Site(jobs, parse_shape("2x4"))], settings, 1, 0)
    own = jobs.take(slice(case.window.start, case.window.start + 30))
    assert case.jobs.submit_time == pytest.approx((own.submit_time - own.submit_time[0]) / 1.5)
    assert np.array_equal(case.jobs.run_time, own.run_time)


def test_validation_windows_are_behind_the_training_part_and_before_the_test():
    first, last = bounds(200, Split.VALIDATION)
    for group, case in validation_windows([site()], 20, 4, 1, "mixed"):
        assert first <= case.window.start
        assert case.window.start + case.window.jobs <= last
        assert group == "by hand"


def test_two_clusters_of_one_trace_are_judged_apart():
    two = [site(), Site(busy_jobs(200), parse_shape("1x4"))]
    found = {group: case.shape.text for group, case in validation_windows(two, 20, 4, 1, "true")}
    assert found == {"by hand on 2x4": "2x4", "by hand on 1x4": "1x4"}
    other = two[1]._replace(jobs=replace(two[1].jobs, source=replace(two[1].jobs.source, sha256="1" * 64)))
    from rltuned.lab.train.training import digests

    assert digests([*two, other]) == {"by hand": "0" * 64, "by hand (2)": "1" * 64}


def predicted() -> Site:
    return with_predictions(site(), "mixed", 1)


def test_where_users_are_known_half_of_the_windows_have_predicted_run_times():
    one, settings = predicted(), CurriculumSettings(window=(20, 60))
    found = [candidate([one], settings, 1, index) for index in range(100)]
    assert 35 < sum(case.predicted for case in found) < 65
    for case in found:
        own = one.predicted.take(slice(case.window.start, case.window.start + case.window.jobs))
        for made, known in zip(vars(case.estimates).values(), vars(own).values(), strict=True):
            assert np.array_equal(made, known) == case.predicted
    assert [case.predicted for _, case in validation_windows([one], 20, 6, 1, "mixed")] == [True] * 2 + [False] * 4


def test_a_trace_without_users_has_no_predicted_run_times(tmp_path):
    jobs = busy_jobs(200)
    nobody = Site(replace(jobs, user=jobs.partition), parse_shape("2x4"))
    assert with_predictions(nobody, "mixed", 1) is nobody
    assert with_predictions(nobody, "limit", 1) is nobody
    with pytest.raises(EvaluationError, match="by hand: 200 of 200 jobs have no user"):
        with_predictions(nobody, "history", 1)
    with pytest.raises(EvaluationError, match="have no user"):
        train([nobody], by_history(), tmp_path)


def test_expected_run_times_are_fitted_to_windows_whose_run_times_are_not_predicted():
    pytest.importorskip("tensorflow")
    from rltuned.lab.train.training import _Training

    settings = replace(
        SMALL, estimates="mixed", curriculum=CurriculumSettings(window=(60, 60), candidates=12, least_wait=0.0)
    )
    with WorkerPool(1) as pool:
        training = _Training([site()], settings, pool, lambda *_: None)
        cases = list(map(training.candidate, training.windows))
        fitted = training.beginning().weights[RUN_TIME]
    assert 0 < sum(case.predicted for case in cases) < len(cases)
    assert np.array_equal(fitted, run_time_coefficients([case for case in cases if not case.predicted]))
    assert not np.array_equal(fitted, run_time_coefficients(cases))


def by_history() -> TrainSettings:
    return replace(SMALL, estimates="history", curriculum=replace(SMALL.curriculum, estimates="history"))


def test_a_training_on_predicted_run_times_alone_corrects_none(tmp_path):
    result = train([site()], replace(by_history(), steps=(1, 1)), tmp_path)
    assert set(result.validation.groups) == {"by hand"}
    assert files.load(str(result.path)).weights[RUN_TIME].tolist() == [0.0, 1.0, 0.0]


def test_a_stretch_without_limits_is_learned_from_with_drawn_ones():
    jobs = busy_jobs(400)
    limited = np.where(np.arange(400) < 120, np.nan, 7200.0)  # most of the trace has limits, its first stretch none
    one = Site(replace(jobs, time_limit=limited), parse_shape("2x4"))
    assert with_limits(one.jobs)
    found = [candidate([one], CurriculumSettings(window=(20, 60)), 1, index) for index in range(60)]
    asked = [bool((case.estimates.time_limit == 7200.0).all()) for case in found if case.window.start > 120]
    assert 0 < sum(asked) < len(asked)
    assert any(case.window.start + case.window.jobs < 120 for case in found)


def test_a_trace_shorter_than_a_window_is_refused():
    with pytest.raises(EvaluationError, match="so few jobs"):
        candidate([site()], CurriculumSettings(window=(500, 500)), 1, 0)


def test_the_coefficients_are_those_that_the_run_times_were_made_with():
    rng = np.random.default_rng(1)
    case = case_of(busy_jobs(400), estimates="noisy:1")
    r, limit = case.estimates.run_time, case.estimates.time_limit
    made = np.exp(0.5 + 0.4 * np.log(r) + 0.5 * np.log(limit) + 0.01 * rng.normal(size=len(r)))
    jobs = replace(case.jobs, run_time=made)
    assert run_time_coefficients([replace(case, jobs=jobs)]) == pytest.approx([0.5, 0.4, 0.5], abs=0.02)
    assert run_time_coefficients([case_of(busy_jobs(50))]) == pytest.approx([0.0, 1.0, 0.0])


def test_training_begins_with_the_smallest_area_first():
    case = case_of(busy_jobs(100), estimates="noisy:1")
    begun = smallest_area_first("saf", np.array([0.0, 1.0, 0.0], dtype=np.float32))
    run = episode(case).run(begun, temperature=0.0, heads=0, seed=0, record=True)
    step = int(np.diff(run.ptr).argmax())
    seen = slice(run.ptr[step], run.ptr[step + 1])
    area = ((case.estimates.run_time + 1.0) * case.jobs.gpus)[run.job[seen]]  # a column is ln(1 + T)
    assert len(area) > 20
    np.testing.assert_allclose(run.score[seen], -np.log(area) / np.log1p(30 * 86400.0), atol=1e-6)


def test_a_run_leaves_a_model_that_is_accepted_and_everything_that_says_how_it_was_made(trained):
    result, out = trained
    actor = files.load(str(result.path))
    assert RUN_TIME in actor.weights
    told = files.info(str(result.path))
    assert (told.seed, told.revision, told.traces) == (SMALL.seed, "abc", {"by hand": "0" * 64})
    assert told.method == "evolution strategy, then PPO"
    assert told.metrics["validation.objective"] == pytest.approx(result.validation.ratios["objective"], abs=1e-6)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    # At the end of each part, too.
    assert [line["step"] for line in lines if "validation.score" in line] == [3, 4, 6, 8]
    assert all(line["signal"] > 0 for line in lines if line["step"] <= 4)
    settings = json.loads((out / "settings.json").read_text())
    assert settings["settings"]["objective"] == list(Objective())
    assert settings["sites"][0]["sha256"] == "0" * 64


def test_a_run_in_which_nothing_beats_smallest_area_first_leaves_that(tmp_path):
    result = train([site()], replace(SMALL, steps=(0, 0)), tmp_path)
    actor = files.load(str(result.path))
    assert (actor.name, actor.is_rule, result.step) == ("small", True, 0)
    area = smallest_area_first("small", actor.weights[RUN_TIME])
    for name, value in area.weights.items():
        np.testing.assert_array_equal(value, actor.weights[name])
    assert result.validation.ratios["objective"] == pytest.approx(1.0)
    assert files.info(str(result.path)).method == "no step"


@pytest.mark.parametrize("when", [3, 4, 6])
def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_weights(trained, tmp_path, monkeypatch, when):
    result, _ = trained
    saved = RunDirectory.save

    def killed(self, step, arrays, told):
        saved(self, step, arrays, told)
        if step == when:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train([site()], SMALL, tmp_path, revision="abc")
    monkeypatch.setattr(RunDirectory, "save", saved)
    # What was being written when it was killed is there, too, and worth nothing.
    (tmp_path / "checkpoints" / "000007.npz").write_bytes(b"PK\x03\x04")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "obj')
    again = train([site()], SMALL, tmp_path, revision="abc", resume=True)
    assert again.path.read_bytes() == result.path.read_bytes()
    assert again.path.with_suffix(".safetensors").read_bytes() == result.path.with_suffix(".safetensors").read_bytes()
    assert (tmp_path / "metrics.jsonl").read_text() == (trained[1] / "metrics.jsonl").read_text()


def test_a_run_that_is_out_of_time_ends_cleanly_with_the_best_so_far(tmp_path):
    ticks = iter(range(100))
    result = train([site()], replace(SMALL, steps=(20, 20)), tmp_path, seconds=3.5, clock=lambda: float(next(ticks)))
    assert result.steps == 3
    assert files.load(str(result.path)).name == "small"
    assert files.info(str(result.path)).method == "evolution strategy", "PPO was asked for, and did not run"


def test_a_run_with_a_checkpoint_is_not_overwritten_and_not_mixed_up_with_another_one(tmp_path):
    RunDirectory(tmp_path, {"window": 1024}, resume=False)
    again = RunDirectory(tmp_path, {"window": 64}, resume=False)
    assert json.loads((tmp_path / "settings.json").read_text()) == {"window": 64}
    again.save(0, {}, {})
    with pytest.raises(EvaluationError, match="--resume"):
        RunDirectory(tmp_path, {"window": 64}, resume=False)
    with pytest.raises(EvaluationError, match=r"other settings \(window\)"):
        RunDirectory(tmp_path, {"window": 1024}, resume=True)


def test_an_error_of_a_training_stands_alone_and_the_directory_can_be_used_again(tmp_path):
    pytest.importorskip("tensorflow")
    trace = tmp_path / "t.csv"
    trace.write_text("submit_time,run_time,num_gpus\n0,10,1\n10,10,1\n20,10,1\n")
    words = ["train", "--trace", str(trace), "--cluster", "2x2", "--out", str(tmp_path / "run"), "--workers", "1"]
    done = subprocess.run([sys.executable, "-m", "rltuned", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 13
    assert len(done.stderr.splitlines()) == 1
    again = CliRunner().invoke(cli, words)
    assert done.stderr == f"rltuned: {again.exception}\n"
    assert str(again.exception).startswith("t.csv: its training part has 2 jobs")


def test_a_trace_on_which_nobody_waits_teaches_nothing_and_says_so(tmp_path):
    with pytest.raises(EvaluationError, match="nothing to be learned"):
        train([Site(busy_jobs(200), parse_shape("400x8"))], SMALL, tmp_path)


def test_several_processes_give_what_one_gives():
    tasks = [partial(in_slurms_order, case_of(busy_jobs(30, seed))) for seed in range(3)]
    with WorkerPool(1) as alone, WorkerPool(2) as pool:
        # As text: fairness is no number here, and such do not equal themselves.
        assert json.dumps(list(pool.map(call, tasks))) == json.dumps(list(alone.map(call, tasks)))


def test_the_command_trains_and_tells_how_the_model_compares(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow")
    trace = tmp_path / "jobs.csv"
    write_csv(busy_jobs(200), trace)
    monkeypatch.setattr(command, "settings", lambda **_: SMALL)
    words = ["train", "--trace", str(trace), "--cluster", "2x4", "--out", str(tmp_path / "run"), "--workers", "1"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "small.json: " in done.output
    assert "mean wait" in done.output
    assert (tmp_path / "run" / "command").read_text().startswith("rltuned train --trace")
    told = CliRunner().invoke(cli, [*words, "--resume", "--json"], catch_exceptions=False)
    assert json.loads(told.stdout)["steps"] == 8


def test_a_training_on_the_sites_own_jobs_says_first_what_of_the_site_is_not_simulated(tmp_path):
    slurm = StandIn(tmp_path / "slurm")
    slurm.answer("config", CONFIG.replace("PreemptType             = (null)", "PreemptType = preempt/qos"))
    row = "8|u|a|gpu|normal|10|10|70|90|20|30|cpu=1,gres/gpu=2|cpu=1,gres/gpu=2|1|COMPLETED"
    slurm.answer("trace", row.replace("|", SEPARATOR) + SEPARATOR + "\n")
    said = []
    command.read_sites(command.sources([], [], 0.25), SlurmSection(bin_dir=slurm.bin_dir), 100.0, said.append, silent)
    assert said[0].startswith("not simulated, though it changes who starts when: PreemptType=preempt/qos")
    said.clear()
    own = command.sources([], ["2x4"], 0.25)
    command.read_sites(own, SlurmSection(bin_dir=slurm.bin_dir), 100.0, said.append, silent)
    assert said == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"steps": (315, 45), "objective": Objective()}),
        ({"begin": "general"}, {"begin": "general"}),
        ({"begin": "none"}, {"begin": ""}),
        ({"budget": 10.0}, {"steps": (105, 15)}),
        ({"budget": 10.0, "steps": "1,2"}, {"steps": (1, 2)}),
    ],
)
def test_what_is_asked_decides_the_settings_and_is_in_the_record(asked, expected):
    made = command.settings(name="x", **asked)
    assert {name: vars(made)[name] for name in expected} == expected
    assert command.line(command.sources(["a"], ["1x1"]), made) == (
        f"rltuned train --trace a --cluster 1x1 --name x --estimates mixed --from {made.begin or 'none'} "
        f"--seed 7 --steps {','.join(map(str, made.steps))}"
    )
    own = command.line(command.sources([], [], 3.0, True), made)
    assert own.startswith("rltuned train --from-sacct 3 --name x ")
    assert own.endswith(" --skip-bad")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"estimates": "histories"}, "none of true, noisy:SIGMA .* or history"),
        ({"steps": "3"}, "not EVOLUTION,PPO"),
    ],
)
def test_what_training_cannot_do_is_refused(asked, reason):
    with pytest.raises(ConfigError, match=reason):
        command.settings(name="x", **asked)
