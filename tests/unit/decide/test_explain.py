"""What moved the score, and what would change the place: `explain` with the policy at hand."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from unit.policy.conftest import actor_of

from rltuned import show
from rltuned.config import Config, PlacementApply, PlacementSection
from rltuned.decide import DecisionRecord, explain, plan, record
from rltuned.decide.predictions import RunTimePredictions
from rltuned.decide.rollout import RolloutResult
from rltuned.decide.start_request import start_request
from rltuned.decide.what_if import Request, observation_of
from rltuned.learn.queues import QueueSettings, generate
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


def test_predicted_means_are_not_corrected_in_the_plan_nor_when_asked_again(queue):
    snapshot, estimates = queue
    actor = learned()
    actor = replace(actor, weights={**actor.weights, RUN_TIME: np.array([-1.5, 0.45, 0.625], dtype=np.float32)})
    told = np.where(np.isnan(estimates), 600.0, estimates)
    known = RunTimePredictions(told, told, 0.5 * told, 2.0 * told)
    predicted = plan(snapshot, actor, QUIET, None, told, distribution=known)
    assert np.array_equal(predicted.scores, plan(snapshot, on_means(actor), QUIET, None, told).scores)
    erring = plan(snapshot, actor, QUIET, None, told)
    assert not np.array_equal(predicted.scores, erring.scores)
    for made in (predicted, erring):
        found = DecisionRecord.from_json(json.dumps(record(made).to_json(), allow_nan=False))
        answer = explain(found, found.jobs.id[0], actor)
        assert answer.policy_note == ""
        parts = sum(part.rule + part.network for part in answer.sum.parts)
        assert answer.sum.reference + parts == pytest.approx(answer.sum.score, abs=1e-9)
    with_spread = [uncertain(made, actor) for made in (predicted, erring)]
    assert not np.array_equal(*with_spread)


def uncertain(made, actor):
    """What start times expect of run times."""
    return start_request(made, actor, None, moves=False).run_times


@pytest.fixture
def queue():
    return generate(np.random.default_rng(3), QueueSettings(jobs=(60, 90), estimate_error=(0.5, 1.0), limit_only=0.0))


def test_the_parts_of_a_learned_score_add_up_to_it_and_the_record_is_enough_for_them(queue):
    actor = learned()
    made = decided(actor, *queue)
    for job in made.jobs.id[::9]:
        answer = explain(made, job, actor)
        assert answer.policy_note == ""
        told = answer.sum
        assert {part.name for part in told.parts} == set(STATE_COLUMNS)
        assert told.score == pytest.approx(answer.score, abs=2e-6)
        assert told.reference + sum(part.rule + part.network for part in told.parts) == pytest.approx(
            told.score, abs=1e-9
        )
        assert {part.name for part in told.parts if part.rule} == {"requested_time", "requested_gpus"}
        sizes = [abs(part.rule + part.network) for part in told.parts]
        assert sizes == sorted(sizes, reverse=True)
        json.dumps(answer.as_dict(), allow_nan=False)


def test_a_network_that_corrects_nothing_has_no_column(queue):
    for scale, columns in ((0.2, True), (0.0, False)):
        actor = actor_of(residual="saf", context=True)
        actor.weights["layer3.kernel"][:] *= scale
        actor.weights["layer3.bias"][:] *= scale
        made = decided(actor, *queue)
        console = Console(file=io.StringIO(), width=200)
        show.explanation(console, explain(made, made.jobs.id[0], actor))
        told = console.file.getvalue()
        assert "moves the score" in told
        assert ("by the network" in told) == columns


def test_a_record_gives_back_what_the_policy_saw(queue):
    result = plan(queue[0], learned(), QUIET, None, queue[1])
    seen = observation_of(DecisionRecord.from_json(json.dumps(record(result).to_json())))
    np.testing.assert_allclose(seen.state, result.observation.state, atol=1e-6)
    for name in ("run_time", "time_limit", "gpus", "wait", "submit", "priority"):
        np.testing.assert_array_equal(getattr(seen, name), getattr(result.observation, name))


def test_half_the_limit_brings_a_job_to_the_place_that_a_new_plan_gives_it():
    jobs = pending(5, time_limit=LIMITS)
    actor = learned()
    made = decided(actor, make_snapshot(jobs))
    (found,) = [other for other in explain(made, 1, actor).alternatives if other.request == Request.LIMIT]
    halved = pending(5, time_limit=[3600.0, *LIMITS[1:]])
    again = explain(decided(actor, make_snapshot(halved)), 1, actor)
    assert found.score == pytest.approx(again.score, abs=2e-6)
    assert (found.place, found.among) == (again.better_scored + 1, 5)
    assert found.instead_of == explain(made, 1).better_scored + 1


def test_half_the_gpus_of_a_job_over_nodes_are_half_the_nodes():
    columns = {"time_limit": LIMITS, "gpus_per_node": 4, "cpus": [16, 8, 8, 8, 8], "mem": [8000.0, *([4000.0] * 4)]}
    jobs = pending(5, gpus=[8, 4, 4, 4, 4], nodes=[2, 1, 1, 1, 1], **columns)
    fewer = replace(jobs, gpus=jobs.gpus // [2, 1, 1, 1, 1], nodes=jobs.nodes // [2, 1, 1, 1, 1])
    fewer = replace(fewer, cpus=jobs.cpus // [2, 1, 1, 1, 1], mem=jobs.mem / [2, 1, 1, 1, 1])
    actor = learned()
    made = decided(actor, make_snapshot(jobs))
    (found,) = [other for other in explain(made, 1, actor).alternatives if other.request == Request.GPUS]
    assert found.score == pytest.approx(explain(decided(actor, make_snapshot(fewer)), 1).score, abs=2e-6)


def test_only_what_a_job_could_have_asked_for_is_tried():
    jobs = pending(3, time_limit=[np.inf, 3600.0, 600.0], gpus=[1, 1, 3], nodes=[1, 1, 1])
    made = decided(by_name("saf"), make_snapshot(jobs), np.array([np.nan, 60.0, np.nan]))
    tried = {job: {other.request for other in explain(made, job, by_name("saf")).alternatives} for job in (1, 2, 3)}
    assert tried == {1: set(), 2: {Request.LIMIT, Request.TIME}, 3: {Request.LIMIT, Request.GPUS}}


def test_a_plain_rule_is_asked_again_as_well():
    made = decided(by_name("sjf"), make_snapshot(pending(5, time_limit=LIMITS)))
    answer = explain(made, 4, by_name("sjf"))
    assert answer.sum is None
    assert [(other.place, other.instead_of) for other in answer.alternatives] == [(5, 5)]
    answer = explain(made, 1, by_name("sjf"))
    assert [(other.place, other.instead_of) for other in answer.alternatives] == [(3, 4)]


def test_another_model_than_the_one_that_decided_is_not_asked(queue):
    made = decided(learned(), *queue)
    for other in (actor_of(seed=5, residual="saf", context=True), by_name("saf")):
        answer = explain(made, made.jobs.id[0], other)
        assert "is not what decided" in answer.policy_note
        assert answer.sum is None
        assert answer.alternatives == ()


class Forward:
    """A search that finds three hours and a half in exchanging the first and the last job."""

    def __call__(self, request):
        first, *others, last = request.rows[np.argsort(-request.scores)].tolist()
        return RolloutResult(17, 22_600.0, 10_000.0, (first, *others, last), (last, *others, first))


def test_the_jobs_that_the_rollouts_moved_say_so_and_the_others_do_not():
    actor = learned()
    made = decided(actor, make_snapshot(pending(5, time_limit=LIMITS)), search=Forward())
    moved = next(job for job, (_, place) in made.rollout.places.items() if place == 1)
    answer = explain(made, moved, actor)
    assert answer.rank == 1
    assert answer.rollout.startswith("place 1 instead of 5 among the first 5 jobs after 17 rollouts")
    assert answer.rollout.endswith("expected to save 3.5 h of waiting in all")
    assert answer.policy_note == ""
    console = Console(width=200, file=io.StringIO())
    show.plan_diff(console, made, 10)
    assert "17 rollouts: 2 of the first 5 jobs change places, expected to save 3.5 h" in console.file.getvalue()
    others = set(range(1, 6)) - set(made.rollout.places)
    assert len(others) == 3
    assert {explain(made, job, actor).rollout for job in others} == {""}


def test_people_read_the_same(queue):
    actor = learned()
    made = decided(actor, *queue)
    job = next(job for job in made.jobs.id if explain(made, job, actor).alternatives)
    answer = explain(made, job, actor)
    console = Console(width=200, file=io.StringIO())
    show.explanation(console, answer)
    text = console.file.getvalue()
    first, other = answer.sum.parts[0], answer.alternatives[0]
    assert f"{first.rule + first.network:+.4f}" in text
    assert f"by score among {other.among} visible jobs" in text
