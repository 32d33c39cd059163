"""`rltuned learn`: which candidate comes into force, what becomes of the verdict, and what a killed run leaves."""

import json
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from unit.evaluate import test_live
from unit.evaluate.small import Recording, bursts, jobs_of, settings
from unit.evaluate.test_gate import TRAINING, cooked

from rltuned.cli.main import cli
from rltuned.core.config import MODEL
from rltuned.core.errors import EvaluationError
from rltuned.core.workers.pool import WorkerPool
from rltuned.lab.evaluate import live
from rltuned.lab.evaluate.bootstrap import Comparison
from rltuned.lab.evaluate.evaluation_settings import AGAIN, Start
from rltuned.lab.evaluate.windows import Split, bounds
from rltuned.lab.train import renew
from rltuned.records.gate_verdict import DAY, SLURM, parse_verdict
from rltuned.records.store import ModelStore
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.write import write_csv

NOW = 1e9
JOBS = bursts(71, 14)
POLICIES = ("multifactor", AGAIN, "rl:0.5")
"""Of the gate, without a plain rule that is as good."""


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "store")


def put(store, model, now=NOW - 30 * DAY, **facts):
    version = store.add(model, now, "a test", **facts)
    store.use(version, now, "for a test")
    return version


def asked(**values):
    usual = {"policies": POLICIES, "windows": 10, "start": Start.WARM, "cluster": "1x1"}
    return settings(**usual | values)


def no_trainer(jobs, shape, out):
    raise EvaluationError("none is made")


def run(store, trainer=no_trainer, *, jobs=JOBS, shape="1x1", pool=None, why_not="", now=NOW, **values):
    given = renew.Run(
        store=store, settings=asked(**values), pool=pool or WorkerPool(1), now=now, revision="revision", length=14
    )
    return renew.renew(given, jobs, parse_shape(shape), trainer, why_not)


def trainer_of(tmp_path, name, jobs=JOBS, **weights):
    """Makes this model, whatever it is given."""
    training = TRAINING.model_copy(update={"traces": {"t.csv": jobs.source.sha256}})

    def trainer(given, shape, out):
        return cooked(out, name, training, **weights)

    return trainer


def verdict_in_force(store):
    return parse_verdict((store.root / "current" / "verdict.json").read_bytes())


def test_a_candidate_that_certainly_waits_less_comes_into_force_with_its_own_verdict(store, tmp_path):
    put(store, cooked(tmp_path, "largest-first", requested_time=1.0))
    made = run(store, trainer_of(tmp_path, "smallest-first", requested_time=-1.0))
    assert (made.accepted, made.version) == (True, 2)
    assert made.over_current.hi < 1.0
    read = verdict_in_force(store)
    assert (read.chosen, read.model.name, read.made_at) == (MODEL, "smallest-first", NOW)
    assert read.model.manifest_sha256 == store.current().manifest_sha256
    assert store.current().learned_until == pytest.approx(
        JOBS.source.start + JOBS.submit_time[bounds(len(JOBS), Split.TEST)[0] - 1]
    )
    assert store.before().number == 1
    assert not (store.root / "work").exists()


def test_the_gate_refuses_a_worse_candidate_and_the_version_in_force_has_a_new_verdict(store, tmp_path):
    first = put(store, cooked(tmp_path, "smallest-first", requested_time=-1.0), verdict=b"old")
    made = run(store, trainer_of(tmp_path, "largest-first", requested_time=1.0))
    assert (made.accepted, made.version) == (False, 1)
    assert "the gate does not choose it" in made.why
    assert store.versions() == [first]
    evaluations = [one.evaluation for one in (made.verdict, made.candidate)]
    first_window, other = (of.cases[0].window for of in evaluations)
    assert first_window == other, "both are judged on the same jobs, …"
    assert {of.settings.split for of in evaluations} == {"test"}, "… behind those that the candidate has learned from"
    assert (verdict_in_force(store).chosen, verdict_in_force(store).model.name) == (MODEL, "smallest-first")


def test_a_candidate_that_is_like_the_version_in_force_does_not_replace_it(store, tmp_path):
    put(store, cooked(tmp_path, "smallest-first", requested_time=-1.0))
    made = run(store, trainer_of(tmp_path, "same", requested_time=-2.0))
    assert not made.accepted
    assert "does not certainly wait less than the version in force (1.000 [1.000, 1.000])" in made.why


def test_what_the_version_in_force_has_learned_from_does_not_judge_it(store, tmp_path):
    row = 845
    put(
        store,
        cooked(tmp_path, "one", requested_time=-1.0),
        learned_until=JOBS.source.start + float(JOBS.submit_time[row]),
    )
    made = run(store)
    assert made.verdict.as_dict()["evidence"]["first_job"] > int(JOBS.job_id[row])
    newest = JOBS.source.start + float(JOBS.submit_time[900])
    put(store, cooked(tmp_path, "two", requested_time=-2.0), learned_until=newest)
    with pytest.raises(EvaluationError, match="10 windows"):
        run(store)


@pytest.mark.parametrize(
    ("why_not", "jobs", "why"),
    [
        ("TensorFlow is not installed", JOBS, r"No candidate: TensorFlow is not installed\."),
        ("", bursts(36, 14), "No candidate: the gate needs 10 windows"),
    ],
    ids=["no TensorFlow", "too little history"],
)
def test_without_a_candidate_the_verdict_is_renewed_and_the_reason_is_told(store, tmp_path, why_not, jobs, why):
    put(store, cooked(tmp_path, "smallest-first", requested_time=-1.0))
    made = run(store, trainer_of(tmp_path, "never", requested_time=1.0), why_not=why_not, jobs=jobs)
    assert (made.accepted, made.candidate) == (False, None)
    assert re.match(why, made.why)
    assert verdict_in_force(store).made_at == NOW


def test_with_too_little_history_for_a_verdict_the_old_one_stays(store, tmp_path):
    put(store, cooked(tmp_path, "smallest-first", requested_time=-1.0), verdict=b"old")
    with pytest.raises(EvaluationError, match="10 windows"):
        run(store, jobs=bursts(7, 14))
    assert store.current().verdict.read_bytes() == b"old"
    assert not (store.root / "work").exists()


@pytest.mark.parametrize(("seed", "kept"), [(1, 35), (2, 0)], ids=["the same", "other windows"])
def test_a_run_that_was_killed_goes_on_with_what_it_had_if_the_same_is_asked(store, tmp_path, seed, kept):
    put(store, cooked(tmp_path, "largest-first", requested_time=1.0))
    trainer = trainer_of(tmp_path, "smallest-first", requested_time=-1.0)
    with pytest.raises(KeyboardInterrupt):
        run(store, trainer, pool=Recording(35), seed=1)
    assert store.current().number == 1, "nothing half-way is in force"
    second = Recording()
    assert run(store, trainer, pool=second, seed=seed).accepted
    assert len(second.done) == 2 * 10 * 3 - kept


def test_a_killed_run_asks_for_the_same_time_for_a_day(tmp_path):
    work = tmp_path / "work"
    assert renew.end_of_history(work, NOW) == NOW
    assert renew.end_of_history(work, NOW + 0.9 * DAY) == NOW
    (work / "training").mkdir()
    assert renew.end_of_history(work, NOW + 1.1 * DAY) == NOW + 1.1 * DAY
    assert not (work / "training").exists()


def test_an_empty_store_begins_with_the_shipped_model(store):
    version = renew.in_force(store, NOW, lambda _: None)
    assert version.origin == "shipped: general"
    assert store.current() == version


def test_a_damaged_version_gives_way_to_the_one_before_it(store, tmp_path):
    first = put(store, cooked(tmp_path, "one", requested_time=-1.0))
    second = put(store, cooked(tmp_path, "two", requested_time=-2.0))
    second.model.write_text("{")
    said = []
    assert renew.in_force(store, NOW, said.append) == first
    assert "version 2 is damaged" in said[0]


def test_after_a_rollback_no_candidate_is_made_for_a_week(store, tmp_path):
    put(store, cooked(tmp_path, "one", requested_time=-1.0))
    put(store, cooked(tmp_path, "two", requested_time=-2.0))
    assert renew.paused(store, NOW) == ""
    store.rollback(NOW, "it waits longer")
    assert "it waits longer" in renew.paused(store, NOW + 6.9 * DAY)
    assert renew.paused(store, NOW + 7.1 * DAY) == ""
    store.use(store.version(2), NOW, "by hand")
    assert renew.paused(store, NOW) == ""


@pytest.mark.parametrize(
    ("candidate", "current", "ratio", "accepted"),
    [
        (MODEL, MODEL, (0.9, 0.8, 0.99), True),
        (MODEL, MODEL, (0.9, 0.8, 1.01), False),
        (MODEL, MODEL, (1.1, 1.0, 1.2), False),
        (MODEL, "saf", (1.1, 1.0, 1.2), True),
        ("saf", "saf", (0.5, 0.4, 0.6), False),
        (SLURM, MODEL, (0.5, 0.4, 0.6), False),
    ],
)
def test_what_a_candidate_must_prove(candidate, current, ratio, accepted):
    verdicts = [SimpleNamespace(chosen=one, reason="Because.") for one in (candidate, current)]
    over = Comparison(*ratio) if candidate == MODEL else None
    assert (renew.not_better(*verdicts, over) == "") == accepted


def test_a_candidate_is_held_against_the_version_in_force_each_with_the_share_that_its_verdict_has():
    def verdict(wait, chosen, share):
        measured = {f"rl:{one:g}": {"wait_mean": np.full(10, wait * one)} for one in (0.1, 0.5)}
        return SimpleNamespace(chosen=chosen, share=share, measured=measured)

    candidate = verdict(3.0, MODEL, 0.5)
    over = renew.compared(candidate, verdict(4.0, MODEL, 0.1), 1)
    assert over.ratio == pytest.approx(3 * 0.5 / (4 * 0.1))
    over = renew.compared(candidate, verdict(4.0, "saf", 0.1), 1)
    assert over.ratio == pytest.approx(3 / 4), "a rule's share says nothing of the model"
    assert renew.compared(verdict(3.0, "saf", 0.1), candidate, 1) is None


def learnt(tmp_path, jobs, window, *words):
    """What `rltuned learn` does with these jobs in the store of a configuration."""
    trace, config, root = tmp_path / "jobs.csv", tmp_path / "config.toml", tmp_path / "store"
    write_csv(jobs, trace)
    config.write_text(f'[policy]\nname = "auto"\nmodel = "{root}/current/model.json"\n')
    asked = ["learn", "--trace", trace, "--cluster", "1x1", "--window", window]
    asked += ["--shares", "0.5", "--workers", "1", "--config", config, *words]
    done = CliRunner().invoke(cli, [*map(str, asked)])
    assert done.exit_code in {0, 14}, done.output
    return done, config, root


def test_the_command_trains_a_candidate_and_says_how_it_compares(tmp_path, small_trainings):
    done, _, root = learnt(tmp_path, JOBS, 14, "--budget", "0.1")
    assert re.search(r"The candidate is (refused: .*|in force as version 2)\.", done.stdout)
    assert "│ rl " in done.stdout, "with the shares that were tried"
    assert not (root / "work").exists()


def test_the_command_renews_the_store_and_says_what_it_did(tmp_path):
    done, config, root = learnt(tmp_path, JOBS.take(np.arange(500)), 20, "--budget", "0")
    assert "No candidate: --budget 0." in done.stdout
    chosen = json.loads((root / "current" / "verdict.json").read_text())["chosen"]
    assert done.exit_code == (14 if chosen == SLURM else 0)
    listed = CliRunner().invoke(cli, ["model", "list", "--json", "--config", str(config)])
    (one,) = json.loads(listed.stdout)
    assert (one["version"], one["in_force"], one["verdict"], one["origin"]) == (1, True, chosen, "shipped: general")


def test_on_a_host_of_many_cores_it_stays_within_the_unit_s_memory(tmp_path, monkeypatch):
    def seen(workers):
        raise EvaluationError(f"{workers} processes")

    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("rltuned.cli.common.slurmctld_runs", lambda: False)
    monkeypatch.setattr("rltuned.core.workers.pool.WorkerPool", seen)
    write_csv(JOBS, tmp_path / "jobs.csv")
    words = ["learn", "--trace", str(tmp_path / "jobs.csv"), "--cluster", "2x4", "--store", str(tmp_path / "store")]
    done = CliRunner().invoke(cli, words)
    assert str(done.exception) == "8 processes"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("learn --trace t.csv", "--trace needs --cluster"),
        ("learn --trace t.csv --cluster 1x1 --from-sacct 3", "Either --from-sacct"),
        ("train --out x", "Either --from-sacct"),
        ("train --trace a.csv --out x", "--trace needs --cluster"),
        ("train --trace a.csv --trace b.csv --cluster 2x4 --out x", "2 traces and 1 clusters"),
        ("train --from-sacct 3 --cluster 2x4 --cluster 1x4 --out x", "0 traces and 2 clusters"),
        ("train --trace a.csv --cluster 2x4", "Missing option '--out'"),
    ],
)
def test_whose_jobs_is_said_once_and_whole(words, why):
    done = CliRunner().invoke(cli, words.split())
    assert (done.exit_code, why in " ".join(done.stderr.split())) == (2, True), done.stderr


# --- going back, and the whole of it


@pytest.fixture(scope="module")
def worse_since_two_weeks():
    """Four weeks of jobs; in the last two the order was the wrong way round. Their last submission is at NOW."""
    jobs = test_live.lived(test_live.four_weeks(), test_live.rule("saf"), test_live.WrongWayRound(), 14 * test_live.DAY)
    return replace(jobs, source=replace(jobs.source, start=NOW - float(jobs.submit_time[-1])))


def in_use(store, tmp_path, *, watched):
    """A good version, and one that has been in force for the last two weeks."""
    good = store.add(cooked(tmp_path, "smallest-first", requested_time=-1.0), NOW - 30 * DAY, "a test")
    store.use(good, NOW - 30 * DAY, "for a test")
    bad = store.add(cooked(tmp_path, "largest-first", requested_time=1.0), NOW - 14 * DAY, "a test")
    store.use(bad, NOW - 14 * DAY, "for a test", watched=watched)
    return good, bad


def test_a_version_under_which_jobs_really_wait_longer_is_given_up_and_no_candidate_follows(
    store, tmp_path, worse_since_two_weeks
):
    good, bad = in_use(store, tmp_path, watched=True)
    never = trainer_of(tmp_path, "never", requested_time=-1.0)
    made = run(store, never, jobs=worse_since_two_weeks, estimates="noisy:1")
    assert (made.given_up, made.version) == (bad.number, good.number)
    assert store.current() == good
    assert "jobs have waited" in store.uses()[-1].why
    assert "the last version was given up" in made.why
    assert made.verdict.model.name == "smallest-first", "its verdict is new, too"
    again = run(store, never, jobs=worse_since_two_weeks, now=NOW + DAY, estimates="noisy:1")
    assert again.given_up == 0, "the one that came back is not given up for what the other one did"


def test_what_a_person_has_chosen_is_told_of_but_stays(store, tmp_path, worse_since_two_weeks):
    _, bad = in_use(store, tmp_path, watched=False)
    told = []
    look = partial(live.look, asked(estimates="noisy:1"), worse_since_two_weeks, parse_shape("2x4"), "")
    assert renew.watched(store, NOW, told.append, look) == 0
    assert store.current() == bad
    assert f"since version {bad.number} came into force, jobs have waited" in told[0]


def habits(n, rng, *, told):
    """Jobs of a site whose users say how long their jobs run (`told`), or ask for a day each time."""
    run_time = np.maximum(rng.lognormal(6.0, 1.5, n).round(), 1.0)
    limit = np.ceil(1.2 * run_time) if told else np.maximum(86_400.0, run_time)
    return rng.exponential(60.0, n).round(), run_time, rng.choice([1, 1, 2, 4, 8], n), limit


def test_when_users_change_their_habits_the_verdict_follows_with_the_next_night(store, tmp_path):
    put(store, cooked(tmp_path, "shortest-limit-first", requested_limit=-1.0))
    rng = np.random.default_rng(5)
    before, after = habits(500, rng, told=True), habits(150, rng, told=False)
    gaps, run_time, gpus, limit = (np.concatenate(parts) for parts in zip(before, after, strict=True))
    at = np.cumsum(gaps)
    assert at[-1] - at[499] < DAY
    told, all_jobs = (replace(jobs_of(at[:n], run_time[:n], gpus[:n]), time_limit=limit[:n]) for n in (500, 650))
    made = run(store, jobs=told, estimates="limit")
    assert made.verdict.chosen == MODEL, made.verdict.reason
    made = run(store, jobs=all_jobs, estimates="limit", now=NOW + DAY)
    assert made.verdict.chosen != MODEL
    assert verdict_in_force(store).chosen == made.verdict.chosen, "the daemon goes by it from its next cycle on"
