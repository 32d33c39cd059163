"""What `explain` says of a decision."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from unit.generated_queues import QueueSettings, generate
from unit.policy.conftest import actor_of

from rltuned import show
from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.borrowed import Borrowed
from rltuned.config import Config, PlacementApply, PlacementSection
from rltuned.decide import DecisionRecord, explain, plan, record
from rltuned.decide.rollout import RolloutResult
from rltuned.estimates.predictions import RunTimePredictions
from rltuned.forecast.start_forecast import start_request
from rltuned.observe import STATE_COLUMNS
from rltuned.policy.actor import RUN_TIME, on_means
from rltuned.policy.heuristics import by_name

from .conftest import make_snapshot, pending

QUIET = Config(placement=PlacementSection(apply=PlacementApply.OFF))
LIMITS = [7200.0, 3600.0, 600.0, 86400.0, 1200.0]


def decided(policy, snapshot, estimates=None, search=None):
    """The decision record as the disk gives it back."""
    made = record(plan(snapshot, policy, QUIET, None, estimates, search))
    found = DecisionRecord.from_json(json.dumps(made.to_json(), allow_nan=False))
    assert found == made
    return found


def learned(**architecture):
    actor = actor_of(residual="saf", context=True, **architecture)
    actor.weights["layer3.kernel"][:] *= 0.2
    return actor


def test_predicted_means_are_not_corrected_in_the_plan(queue):
    snapshot, estimates = queue
    actor = learned()
    actor = replace(actor, weights={**actor.weights, RUN_TIME: np.array([-1.5, 0.45, 0.625], dtype=np.float32)})
    told = np.where(np.isnan(estimates), 600.0, estimates)
    known = RunTimePredictions(told, told, 0.5 * told, 2.0 * told)
    predicted = plan(snapshot, actor, QUIET, None, told, distribution=known)
    assert np.array_equal(predicted.scores, plan(snapshot, on_means(actor), QUIET, None, told).scores)
    erring = plan(snapshot, actor, QUIET, None, told)
    assert not np.array_equal(predicted.scores, erring.scores)
    with_spread = [uncertain(made, actor) for made in (predicted, erring)]
    assert not np.array_equal(*with_spread)


def uncertain(made, actor):
    """What start times expect of run times."""
    return start_request(made, actor, None, moves=False).run_times


@pytest.fixture
def queue():
    return generate(np.random.default_rng(3), QueueSettings(jobs=(60, 90), estimate_error=(0.5, 1.0), limit_only=0.0))


def test_a_plain_rule_is_explained_by_its_terms_and_an_actor_by_rank_and_features(queue):
    for policy, told in ((by_name("saf"), "the smallest run time × GPUs goes first"), (learned(), "")):
        made = decided(policy, *queue)
        job = next(job for job, row in zip(made.jobs.id, made.jobs.seen, strict=True) if row >= 0)
        answer = explain(made, job)
        assert answer.policy_terms == told.removesuffix(" goes first")
        assert {one.name for one in answer.features if one.used} == set(STATE_COLUMNS)
        json.dumps(answer.as_dict(), allow_nan=False)
        console = Console(width=200, file=io.StringIO())
        show.explanation(console, answer)
        text = console.file.getvalue()
        assert f"rltuned wants it as number {answer.rank}" in text
        assert told in text
        assert ("goes first" in text) == bool(told)
        assert "median of queue" in text


def test_who_asks_reads_what_the_account_of_a_job_has_borrowed():
    snapshot = make_snapshot(pending(2, account=["a", "b"]))
    owed = AppliedChanges(borrowed=Borrowed(snapshot.time, {"b": 7_200.0}))
    made = record(plan(snapshot, by_name("saf"), Config(), owed))
    texts = []
    for job in (1, 2):
        console = Console(width=200, file=io.StringIO())
        show.explanation(console, explain(made, job))
        texts.append(console.file.getvalue())
    assert "borrowed" not in texts[0]
    assert (
        f"Its account has borrowed 2.0 of {made.budget / 3600:.1f} GPU-hours from the fair share of others." in texts[1]
    )


class Forward:
    """A search that finds three hours and a half in exchanging the first and the last job."""

    def __call__(self, request):
        first, *others, last = request.rows[np.argsort(-request.scores)].tolist()
        return RolloutResult(17, 22_600.0, 10_000.0, (first, *others, last), (last, *others, first))


def test_the_jobs_that_the_rollouts_moved_say_so_and_the_others_do_not():
    actor = learned()
    made = decided(actor, make_snapshot(pending(5, time_limit=LIMITS)), search=Forward())
    moved = next(job for job, (_, place) in made.rollout.places.items() if place == 1)
    answer = explain(made, moved)
    assert answer.rank == 1
    assert answer.rollout.startswith("place 1 instead of 5 among the first 5 jobs after 17 rollouts")
    assert answer.rollout.endswith("expected to save 3.5 h of waiting in all")
    console = Console(width=200, file=io.StringIO())
    show.plan_diff(console, made, 10)
    assert "17 rollouts: 2 of the first 5 jobs change places, expected to save 3.5 h" in console.file.getvalue()
    others = set(range(1, 6)) - set(made.rollout.places)
    assert len(others) == 3
    assert {explain(made, job).rollout for job in others} == {""}
