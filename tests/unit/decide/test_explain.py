"""What `explain` says of a decision."""

import io
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from rich.console import Console
from unit.generated_queues import QueueSettings, generate
from unit.rank.conftest import actor_of, expecting

from rltuned.cli import show
from rltuned.core.config import Config, LendSection, PlacementApply, PlacementSection
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import encode
from rltuned.decide.decision import record
from rltuned.decide.entry import lean
from rltuned.decide.expect.predictions import RunTimePredictions, RunTimes
from rltuned.decide.explain import Treatment, explain
from rltuned.decide.listing import listing
from rltuned.decide.loans import Book, Given, Loan, Part
from rltuned.decide.plan import plan
from rltuned.decide.raising import STOP_MEANING, Stop
from rltuned.decide.rank.actor import on_means, plain_rule
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.see.observation import STATE_COLUMNS
from rltuned.simulate.forecast.start_forecast import start_request

from .conftest import NOW, make_snapshot, pending
from .test_decision import parsed

QUIET = Config(placement=PlacementSection(apply=PlacementApply.OFF))
LIMITS = [7200.0, 3600.0, 600.0, 86400.0, 1200.0]


def decided(policy, snapshot, run_times=None):
    """The decision record as the disk gives it back."""
    made = record(plan(snapshot, policy, QUIET, None, run_times))
    found = parsed(encode(made))
    assert found == made
    return found


def printed(answer):
    console = Console(width=200, file=io.StringIO())
    show.explanation(console, answer)
    return console.file.getvalue()


def test_predicted_means_are_not_corrected_in_the_plan(queue):
    snapshot, known = queue
    actor = expecting(actor_of(), -1.5, 0.45, 0.625)
    told = np.where(np.isnan(known.expected), 600.0, known.expected)
    known = RunTimePredictions(told, told, 0.5 * told, 2.0 * told)
    predicted = plan(snapshot, actor, QUIET, None, RunTimes(told, known))
    assert np.array_equal(predicted.scores, plan(snapshot, on_means(actor), QUIET, None, RunTimes(told)).scores)
    erring = plan(snapshot, actor, QUIET, None, RunTimes(told))
    assert not np.array_equal(predicted.scores, erring.scores)
    with_spread = [uncertain(made, actor) for made in (predicted, erring)]
    assert not np.array_equal(*with_spread)


def uncertain(made, actor):
    """What start times expect of run times."""
    return start_request(made, actor, None, moves=False).run_times


@pytest.fixture
def queue():
    settings = QueueSettings(jobs=(60, 90), estimate_error=(0.5, 1.0), limit_only=0.0)
    snapshot, estimates = generate(np.random.default_rng(3), settings)
    return snapshot, RunTimes(estimates)


def test_a_plain_rule_is_explained_by_its_key_and_both_by_rank_and_features(queue):
    for policy, told in ((by_name("saf"), "the smallest run time × GPUs goes first"), (actor_of(), "")):
        made = decided(policy, *queue)
        job = next(job for job, row in zip(made.jobs.id, made.jobs.seen, strict=True) if row >= 0)
        answer = explain(made, job)
        assert answer.policy_terms == told.removesuffix(" goes first")
        assert tuple(one.name for one in answer.features) == STATE_COLUMNS
        json.dumps(asdict(answer), allow_nan=False)
        text = printed(answer)
        assert f"Slurm alone has it at place {answer.slurm_rank} (priority {answer.slurm_priority})" in text
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
    tree = json.loads(encode(record(plan(queue[0], actor_of(), QUIET, None, queue[1]))))
    change(tree)
    with pytest.raises(RltunedError, match=reason):
        parsed(json.dumps(tree))


def test_the_terms_take_little_room_and_none_in_the_log(queue):
    made = record(plan(queue[0], actor_of(), QUIET, None, queue[1]))
    without = replace(made, coefficients=None, window=replace(made.window, terms=None))
    size, smaller = (len(encode(one)) for one in (made, without))
    assert size - smaller <= 85 * len(made.window) + 200
    assert (lean(made).coefficients, lean(made).window.terms) == (None, None)


WAITED = 5 * 3600.0 + 600.0  # seconds


def lending(*, share=0.1, **columns):
    """Eight jobs of four users in Slurm's order. Job 1 (4 GPUs) has lent 0.4 GPU-hours to three jobs, 2 lends to one
    that runs; 4, 6 and 7 are small and wanted; 8 is held.
    """
    jobs = pending(
        8,
        **{
            "user": ["a", "b", "c", "d"] * 2,
            "gpus": [4, 2, 1, 1, 2, 1, 1, 4],
            "time_limit": [90_000.0, 7200.0, 86_400.0, 3600.0, 7200.0, 1200.0, 600.0, 3600.0],
            "submit_time": NOW - WAITED + np.arange(8) / 10,
            "held": [False] * 7 + [True],
            **columns,
        },
    )
    submitted = jobs.submit_time.astype(np.int64).tolist()
    book = Book(
        time=NOW,
        given={1: Given(submitted[0], 1440.0, 3, (17, 18, 19))},
        loans={40: Loan(1, 600.0, NOW - 100.0, NOW - 100.0, -1.0, 0.0, (Part(2, submitted[1], 1.0),))},
    )
    made = record(
        plan(
            make_snapshot(jobs), by_name("saf"), QUIET.model_copy(update={"lend": LendSection(share=share)}), book=book
        )
    )
    assert parsed(encode(made)) == made
    return made


def said(answer):
    """In one line."""
    return " ".join(printed(answer).split())


def test_a_waiting_job_says_how_long_it_waits_what_it_may_lend_and_what_it_has_lent_to_whom():
    made = lending()
    first, second, third = (explain(made, job) for job in (1, 2, 3))
    assert (first.wait, first.may_lend, first.lent, first.loans) == (WAITED, 0.1 * WAITED * 4, 1440.0, 3)
    waits = "It waits 5 h 10 min; may be passed until it has lent"
    assert f"{waits} 2.1 GPU-hours; has lent 0.40 to 3 jobs (17, 18, 19)." in said(first)
    assert f"{waits} 1.0 GPU-hours; has lent 0.17 to 1 job (40)." in said(second)
    assert f"{waits} 0.52 GPU-hours; has lent nothing." in said(third)


def test_what_is_lent_to_jobs_that_nobody_knows_any_more_is_said_to_count():
    made = lending()
    made = replace(made, lent={**made.lent, 1: made.lent[1]._replace(loans=0, borrowers=())})
    assert "until it has lent 2.1 GPU-hours; counts as having lent 0.40 before." in said(explain(made, 1))


def test_a_raised_job_says_whom_it_passes_what_each_lends_and_its_lenders_who_passes_them():
    made = lending()
    answer = explain(made, 4)
    assert (answer.verdict, answer.slurm_rank, answer.rank) == (Treatment.RAISED, 4, 3)
    assert (answer.passes, answer.charged, answer.lenders) == (1, 3600.0, ((1, 1.0),))
    text = said(answer)
    assert "goes ahead" in text
    assert f"with rltuned it is at 3 (priority {answer.target_priority})" in text
    assert (
        "It passes job 1 and those between. When it starts it borrows for 60 min, in GPU-hours: 1.0 of job 1;" in text
    )
    assert "It is passed by 7, 6, 4, and lends to each of them that starts." in said(explain(made, 1))


def test_who_only_passes_jobs_of_its_own_user_borrows_of_nobody():
    answer = explain(lending(user="a"), 4)
    assert (answer.verdict, answer.lenders) == (Treatment.RAISED, ())
    assert "Nobody lends: they are its user's, or cannot start." in said(answer)


def test_a_job_that_is_not_raised_says_why_it_goes_no_further_and_behind_whom_it_stays():
    answer = explain(lending(), 3)
    assert (answer.verdict, answer.stopped_by) == (Treatment.KEPT, 2)
    assert "It goes no further ahead: the job before it has lent its part, or cannot lend as much" in said(answer)
    assert "(job 2)." in said(answer)
    none = explain(lending(share=0.0), 7)
    assert (none.verdict, none.may_lend) == (Treatment.KEPT, 0.0)


def test_each_reason_why_a_job_goes_no_further_is_said():
    assert set(STOP_MEANING) == set(Stop) - {Stop.NONE}


def test_a_job_that_is_left_to_slurm_says_what_it_lends_all_the_same():
    made = lending(nice=[-1, *[0] * 7])
    answer = explain(made, 1)
    assert (answer.verdict, answer.lent) == (Treatment.NOT_MANAGED, 1440.0)
    assert "has lent 0.40 to 3 jobs (17, 18, 19)" in said(answer)
    assert "lent" not in said(explain(made, 8)), "a held job lends nothing"


def lines_of(made, *, limit=40, width=80):
    console = Console(width=width, file=io.StringIO())
    show.plan_diff(console, listing(made), limit)
    return console.file.getvalue().splitlines()


def test_a_plan_is_a_line_for_each_raised_job_and_one_for_those_that_wait():
    head, names, *rows, last = lines_of(lending())
    assert "3 jobs go ahead, 3 changes to write" in head
    assert names.split() == ["job", "place", "priority", "ahead", "of", "lenders", "GPU-h"]
    assert [row.split() for row in rows] == [
        ["7", "7", "→", "1", "9958", "→", "10030", "1", "1", "0.17"],
        ["6", "6", "→", "2", "9965", "→", "10020", "1", "1", "0.33"],
        ["4", "4", "→", "3", "9979", "→", "10010", "1", "1", "1.0"],
    ]
    assert last == "8 jobs wait: 7 managed, 1 left to Slurm (1 held)"
    assert "… 1 more (--limit)" in lines_of(lending(), limit=2)


def test_a_line_of_a_plan_fits_into_80_columns_with_the_longest_ids_priorities_and_queues():
    made = lending(priority=4_294_900_000 - 7 * np.arange(8), job_id=67_000_001 + np.arange(8))
    one, *others = made.raises
    many = one._replace(
        lenders=tuple(one.lenders[0]._replace(id=at, gpus=99.0) for at in range(67_000_001, 67_000_100))
    )
    jobs = replace(made.jobs, rank=tuple(rank + 99_990 for rank in made.jobs.rank))
    jobs = replace(jobs, base_rank=tuple(rank + 99_990 for rank in jobs.base_rank))
    lines = lines_of(replace(made, raises=(many, *others), jobs=jobs))
    assert len(lines) == 6
    assert max(map(len, lines)) <= 80
    assert lines[2].split()[-2:] == ["99", "1,633.5"]


def test_where_nobody_goes_ahead_there_is_no_table():
    head, last = lines_of(lending(share=0.0))
    assert (head[:16], last[:12]) == ("0 jobs go ahead,", "8 jobs wait:")


def test_a_plan_as_data_names_every_value_and_shows_only_the_jobs_that_are_asked_for():
    made = lending()
    tree = json.loads(json.dumps(listing(made)))
    assert [job["id"] for job in tree["jobs"]] == [7, 6, 4, 1, 2, 3, 5], "in the planned order"
    first = tree["jobs"][0]
    assert first["raised"] is True
    assert (first["place"], first["slurm_place"], first["priority"], first["slurm_priority"]) == (1, 7, 10030, 9958)
    assert (first["ahead_of"], first["lenders"]) == (1, [{"id": 1, "gpus": 1.0}])
    assert tree["left"] == [{"id": 8, "why": "held"}]
    assert tree["changes"][0] == {"job": 7, "field": "SiteFactor", "before": 0, "after": 72}
    two = listing(made, {6, 8}.__contains__)
    assert [[job["id"] for job in two[part]] for part in ("jobs", "left")] == [[6], [8]]
    assert [change["job"] for change in two["changes"]] == [6]


def test_the_reason_the_priority_and_the_site_factor_of_the_last_reading_are_said():
    """Of jobs that are ranked, and of those that are left alone."""
    reasons = ["Priority", "Licenses", "JobArrayTaskLimit", "SomethingOf2031"]
    eligible = [NOW - 3600.0, NOW - 3600.0, float("nan"), NOW - 3600.0]
    jobs = pending(4, reason=reasons, eligible_time=eligible, site_factor=[0, 12, 0, 0])
    made = decided(by_name("sjf"), make_snapshot(jobs))
    first, licence, array, new = (explain(made, job) for job in (1, 2, 3, 4))
    assert (first.priority, first.site_factor, first.reason) == (10_000, 0, "")
    assert (licence.priority, licence.site_factor, licence.reason) == (9993, 12, "Licenses")
    assert "Priority 10000, site factor 0 at that reading" in printed(first)
    assert "Slurm's reason, Licenses: A licence that it needs is in use" in printed(licence)
    assert "As many tasks of the array run as its limit" in printed(array)
    assert "begin time" not in printed(array)
    assert "Slurm's reason, SomethingOf2031: Slurm says: SomethingOf2031." in printed(new)


def test_one_gpu_is_no_plural():
    made = decided(by_name("sjf"), make_snapshot(pending(2, gpus=[1, 3])))
    assert "It takes 1 GPU for an expected" in printed(explain(made, 1))
    assert "It takes 3 GPUs for an expected" in printed(explain(made, 2))


def test_entries_of_the_log_lack_them_and_are_still_explained():
    made = decided(by_name("sjf"), make_snapshot(pending(2, reason=["Priority", "Licenses"])))
    tree = json.loads(encode(made))
    del tree["left"], tree["jobs"]["site"]
    old = parsed(json.dumps(tree))
    assert explain(old, 1).site_factor is None
    assert "priority" not in printed(explain(old, 2)).lower().replace("it cannot start now, whatever its priority", "")
