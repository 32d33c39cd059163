"""What `explain` says of a decision."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from unit.generated_queues import QueueSettings, generate
from unit.policy.conftest import actor_of, expecting

from rltuned import show
from rltuned.cluster.applied import AppliedChanges
from rltuned.cluster.borrowed import Borrowed
from rltuned.config import Config, PlacementApply, PlacementSection
from rltuned.decide import DecisionRecord, explain, plan, record
from rltuned.decide.entry import lean
from rltuned.decide.rollout import RolloutResult
from rltuned.errors import RltunedError
from rltuned.estimates.predictions import RunTimePredictions
from rltuned.forecast.start_forecast import start_request
from rltuned.observe import STATE_COLUMNS
from rltuned.policy.actor import on_means, plain_rule
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


def printed(answer):
    console = Console(width=200, file=io.StringIO())
    show.explanation(console, answer)
    return console.file.getvalue()


def test_predicted_means_are_not_corrected_in_the_plan(queue):
    snapshot, estimates = queue
    actor = expecting(actor_of(), -1.5, 0.45, 0.625)
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


def test_a_plain_rule_is_explained_by_its_key_and_both_by_rank_and_features(queue):
    for policy, told in ((by_name("saf"), "the smallest run time × GPUs goes first"), (actor_of(), "")):
        made = decided(policy, *queue)
        job = next(job for job, row in zip(made.jobs.id, made.jobs.seen, strict=True) if row >= 0)
        answer = explain(made, job)
        assert answer.policy_terms == told.removesuffix(" goes first")
        assert {one.name for one in answer.features if one.used} == set(STATE_COLUMNS)
        json.dumps(answer.as_dict(), allow_nan=False)
        text = printed(answer)
        assert f"rltuned wants it as number {answer.rank}" in text
        assert told in text
        assert ("goes first" in text) == bool(told)
        assert "median of queue" in text


def test_the_score_of_a_model_is_the_sum_of_the_terms_that_explain_names(queue):
    actor = expecting(actor_of(), -1.5, 0.45, 0.625)
    made = decided(actor, *queue)
    scored = plan(queue[0], actor, QUIET, None, queue[1]).scored
    jobs = [job for job, row in zip(made.jobs.id, made.jobs.seen, strict=True) if row >= 0]
    for job in jobs[:20]:
        answer, row = explain(made, job), made.jobs.seen[made.jobs.id.index(job)]
        assert tuple(term.name for term in answer.terms) == STATE_COLUMNS
        assert [term.value for term in answer.terms] == pytest.approx(scored.terms[row].tolist(), abs=1e-6)
        assert [term.coefficient for term in answer.terms] == pytest.approx(scored.coefficients.tolist(), abs=1e-6)
        assert all(term.product == term.value * term.coefficient for term in answer.terms)
        assert sum(term.product for term in answer.terms) == pytest.approx(answer.score, abs=2e-5)
    text = printed(answer)
    assert f"What its score {answer.score:.4g} is the sum of" in text
    assert all(f"{term.coefficient:+.3f}" in text and f"{term.product:+.3f}" in text for term in answer.terms)


def test_a_term_that_counts_nothing_is_in_the_answer_and_not_in_the_table(queue):
    made = decided(plain_rule("mine", requested_time=-1.0, job_urgency=0.25), *queue)
    answer = explain(made, made.jobs.id[made.jobs.seen.index(0)])
    assert len(answer.terms) == len(STATE_COLUMNS)
    table = printed(answer).partition("is the sum of")[2].partition("What the policy saw")[0]
    assert [line.split()[0] for line in table.splitlines()[2:] if line.strip()] == ["requested_time", "job_urgency"]


def test_where_a_plain_rule_ranks_or_the_policy_fails_there_are_no_terms(queue):
    broken = actor_of(constant=np.full(len(STATE_COLUMNS), np.nan, np.float32))
    for policy in (by_name("saf"), broken):
        made = decided(policy, *queue)
        assert (made.coefficients, made.window.terms) == (None, None)
        answer = explain(made, made.jobs.id[made.jobs.seen.index(0)])
        assert answer.terms == ()
        assert "is the sum of" not in printed(answer)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tree: tree.pop("coefficients"), "belong together"),
        (lambda tree: tree["window"].pop("terms"), "belong together"),
        (lambda tree: tree["coefficients"].pop(), "need 8 values"),
        (lambda tree: tree.update(coefficients=[]), "need 8 values"),
        (lambda tree: tree["window"]["terms"][3].pop(), "need 8 values"),
        (lambda tree: tree["window"]["terms"].pop(), "'terms' has"),
        (lambda tree: tree["coefficients"].__setitem__(0, "1"), "coefficients.0"),
        (lambda tree: tree["window"]["terms"][0].__setitem__(0, None), "window.terms.0.0"),
    ],
)
def test_a_record_whose_terms_do_not_fit_is_refused(queue, change, reason):
    tree = record(plan(queue[0], actor_of(), QUIET, None, queue[1])).to_json()
    tree = json.loads(json.dumps(tree))
    change(tree)
    with pytest.raises(RltunedError, match=reason):
        DecisionRecord.from_json(json.dumps(tree))


def test_the_terms_take_little_room_and_none_in_the_log(queue):
    made = record(plan(queue[0], actor_of(), QUIET, None, queue[1]))
    without = replace(made, coefficients=None, window=replace(made.window, terms=None))
    size, smaller = (len(json.dumps(one.to_json(), separators=(",", ":"))) for one in (made, without))
    assert size - smaller <= 85 * len(made.window) + 200
    assert (lean(made).coefficients, lean(made).window.terms) == (None, None)


def test_who_asks_reads_what_the_account_of_a_job_has_borrowed():
    snapshot = make_snapshot(pending(2, account=["a", "b"]))
    owed = AppliedChanges(borrowed=Borrowed(snapshot.time, {"b": 7_200.0}))
    made = record(plan(snapshot, by_name("saf"), Config(), owed))
    texts = [printed(explain(made, job)) for job in (1, 2)]
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
    made = decided(actor_of(), make_snapshot(pending(5, time_limit=LIMITS)), search=Forward())
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
