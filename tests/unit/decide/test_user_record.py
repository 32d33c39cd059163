"""What a user may know of a cycle: everything that helps with one's own jobs, and nothing about anybody else's."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from rltuned.cli import show
from rltuned.core.applied import AppliedChanges
from rltuned.core.changes import Applied
from rltuned.core.config import Config, LendSection
from rltuned.core.errors import RltunedError
from rltuned.core.safe_files import parse
from rltuned.decide.loans import NOTHING_LENT, Book, Given
from rltuned.decide.plan import plan
from rltuned.decide.raising import STOP_MEANING, Stop
from rltuned.decide.rank.heuristics import by_name
from rltuned.decide.scope import Veto
from rltuned.decide.user_record import MOST_JOBS, LimitsUsed, UserRecord, UserRecords

from .conftest import NOW, make_snapshot, pending

GENEROUS = Config(lend=LendSection(share=1.0))


def records(snapshot, applied=None, *, moves=True, config=None, book=NOTHING_LENT):
    result = plan(snapshot, by_name("sjf"), config or Config(), applied, book=book)
    return UserRecords(snapshot, interval=60.0, plan=result, moves=moves)


def parsed(data):
    return parse(UserRecord, data, "a user record")


def numbers(record):
    """Every number in the record, and in its sentences."""
    return {int(word) for word in re.findall(r"\d+", json.dumps(record.as_dict()))}


def test_a_record_has_the_users_own_jobs_and_not_a_number_or_name_of_the_others():
    ids = 70_000 + 11 * np.arange(64)
    users = ["alice" if number % 4 else "bob" for number in range(64)]
    jobs = pending(
        64,
        job_id=ids,
        user=users,
        account=["lab-of-" + user for user in users],
        qos=["normal" if number % 5 else "fast" for number in range(64)],
        time_limit=600.0 * (64 - np.arange(64)),
        held=[number % 8 == 0 for number in range(64)],
    )
    given = {int(job): Given(int(jobs.submit_time[row]), 30.0, 1, (int(ids[-1 - row]),)) for row, job in enumerate(ids)}
    made = records(make_snapshot(jobs), book=Book(given=given))
    # Every reason why a job goes no further ahead: admins are told of which job it is.
    stop = np.array([list(STOP_MEANING)[number // 8 % len(STOP_MEANING)] for number in made.plan.managed.at])
    made = replace(made, plan=replace(made.plan, raised=replace(made.plan.raised, stop=stop)))
    for user, other in (("alice", "bob"), ("bob", "alice")):
        record = made.record(user)
        mine = {int(job) for job, whose in zip(ids, users, strict=True) if whose == user}
        assert {job.job_id for job in record.jobs} == mine
        assert not numbers(record) & (set(ids.tolist()) - mine)
        assert other not in json.dumps(record.as_dict())
        assert {job.note for job in record.jobs} >= set(STOP_MEANING.values())
        assert all(job.loans == 1 for job in record.jobs)
    assert made.record("carol").jobs == ()
    assert made.record("").jobs == ()
    assert set(made.users) == {"alice", "bob"}


def test_a_user_without_a_name_in_slurms_answer_is_nobody():
    made = records(make_snapshot(pending(2, user=["", "alice"])))
    assert made.users == ("alice",)
    assert made.record("").jobs == ()
    assert len(made.record("alice").jobs) == 1


def test_places_are_rltuneds_where_it_writes_and_slurms_where_it_only_watches():
    snapshot = make_snapshot(pending(4, user=["alice", "bob", "bob", "alice"], time_limit=600.0 * (4 - np.arange(4))))
    first, last = records(snapshot, config=GENEROUS).record("alice").jobs
    assert (first.job_id, first.place, first.slurm_place, first.lenders) == (4, 1, 4, 1)
    assert (last.job_id, last.place, last.slurm_place, last.lenders) == (1, 4, 1, None)
    assert records(snapshot).record("alice").managed == 4
    watched = {job.job_id: job for job in records(snapshot, moves=False, config=GENEROUS).record("alice").jobs}
    assert (watched[4].place, watched[4].slurm_place) == (4, 4)
    assert {(job.may_lend, job.lenders, job.note) for job in watched.values()} == {(None, None, "")}
    assert not records(snapshot, moves=False).record("alice").moves


def test_a_user_reads_what_a_job_may_lend_what_it_has_lent_and_why_it_goes_no_further():
    jobs = pending(3, user=["alice", "bob", "alice"], gpus=[4, 1, 1], time_limit=[7200.0, 3600.0, 86_400.0])
    given = {1: Given(int(jobs.submit_time[0]), 720.0, 2, (17, 18))}
    made = records(make_snapshot(jobs), book=Book(given=given)).record("alice")
    first, last = sorted(made.jobs, key=lambda job: job.job_id)
    assert (first.may_lend, first.lent, first.loans) == (pytest.approx(0.1 * 3600.0 * 4), 720.0, 2)
    assert (last.may_lend, last.lent, last.loans) == (pytest.approx(0.1 * 3600.0, abs=0.5), 0.0, 0)
    console = Console(file=io.StringIO(), width=200)
    show.user_record(console, made, NOW, only=False)
    text = console.file.getvalue()
    assert "It may be passed until it has lent 0.40 GPU-hours; has lent 0.20 to 2 jobs." in text
    assert "It may be passed until it has lent 0.10 GPU-hours; has lent nothing." in text
    assert f"It goes no further ahead: {STOP_MEANING[Stop.LENT]}." in text
    assert f"place {last.place} of 3" in text
    assert not {17, 18} & numbers(made)


def test_a_user_reads_that_a_job_goes_ahead_now_and_how_many_lend_for_it():
    snapshot = make_snapshot(pending(4, user=["alice", "bob", "bob", "alice"], time_limit=600.0 * (4 - np.arange(4))))
    console = Console(file=io.StringIO(), width=200)
    show.user_record(console, records(snapshot, config=GENEROUS).record("alice"), NOW, only=False)
    assert console.file.getvalue().count("It goes ahead now; 1 job lends for that.") == 1


def test_a_job_that_is_left_to_slurm_says_why_and_has_no_place():
    snapshot = make_snapshot(pending(3, user="alice", reason=["Priority", "JobHeldAdmin", "Priority"], held=[0, 1, 0]))
    foreign = AppliedChanges({3: Applied(3, int(snapshot.jobs.submit_time[2]), foreign=True)})
    jobs = {job.job_id: job for job in records(snapshot, foreign).record("alice").jobs}
    assert jobs[1].place == 1
    assert jobs[1].note == STOP_MEANING[Stop.FRONT]
    assert jobs[2].place is None
    assert "held" in jobs[2].note
    assert jobs[2].meaning == "An admin holds it."
    assert "somebody else set" in jobs[3].note
    assert (jobs[2].may_lend, jobs[3].may_lend) == (None, pytest.approx(360.0, abs=0.5)), "the held one lends nothing"


def test_what_is_only_read_and_not_planned_still_has_slurms_reason():
    made = UserRecords(make_snapshot(pending(2, user=["alice", "bob"], reason="Resources")), interval=60.0)
    (job,) = made.record("alice").jobs
    assert (job.job_id, job.reason, job.place, job.note) == (1, "Resources", None, "")
    assert "its turn" in job.meaning


def test_waiting_counts_from_when_the_job_could_have_started():
    jobs = pending(3, user="alice", eligible_time=[NOW - 90.0, NOW + 90.0, np.nan])
    assert [job.waited for job in records(make_snapshot(jobs)).record("alice").jobs] == [90.0, 0.0, 0.0]


def test_a_job_with_its_partitions_longest_limit_is_told_so_and_an_unlimited_one_is_no_number():
    week = 7 * 86400.0
    made = records(make_snapshot(pending(3, user="alice", time_limit=[week, week - 60.0, np.inf])))
    told = {job.job_id: "longest that its partition allows" in " ".join(job.help) for job in made.record("alice").jobs}
    assert told == {1: True, 2: False, 3: True}
    assert {job.job_id: job.time_limit for job in made.record("alice").jobs}[3] is None


def test_a_record_is_bounded_and_keeps_the_front():
    count = MOST_JOBS + 70
    made = records(make_snapshot(pending(count, user="alice", reason="QOSMaxGRESPerUser" * 4)))
    record = made.record("alice")
    assert (len(record.jobs), record.left_out) == (MOST_JOBS, 70)
    assert len(json.dumps(record.as_dict())) < 500_000
    ranked = records(make_snapshot(pending(count, user="alice", time_limit=60.0 * (count - np.arange(count)))))
    assert ranked.record("alice").jobs[0].place == 1


def test_a_record_survives_json_and_a_later_one_with_more_fields_is_read_too():
    record = records(make_snapshot(pending(3, user="alice"))).record("alice")
    plain = record.as_dict()
    assert parsed(json.dumps(plain)) == record
    assert "start" not in plain["jobs"][0], "nothing is known of a start yet"
    plain["jobs"][0] |= {"start": [NOW, NOW + 60.0], "of_a_later_version": 1}
    assert parsed(json.dumps(plain)).jobs[0].start == (NOW, NOW + 60.0)
    with pytest.raises(RltunedError, match="version"):
        parsed(json.dumps(plain | {"version": 1}))
    with pytest.raises(RltunedError, match="not a user record"):
        parsed(b'{"version": 2, "jo')


def test_no_veto_sends_a_user_to_a_command_for_admins():
    from rltuned.decide.user_record import _VETOES

    assert not [text for text in _VETOES.values() if "doctor" in text]
    assert set(_VETOES) == set(Veto)


@pytest.mark.parametrize(
    ("last", "used"),
    [
        ([], None),
        ([(5.0, 0.0)], None),
        ([(90.0, 3600.0)], LimitsUsed(1, 90.0, 3600.0, 0)),
        ([(90.0, 3600.0), (3600.0, 3600.0), (7230.0, 7200.0)], LimitsUsed(3, 10_920.0, 14_400.0, 2)),
    ],
)
def test_what_the_last_jobs_used_of_their_limits_is_summed_up_and_a_limit_that_was_reached_is_counted(last, used):
    assert LimitsUsed.of(last) == used


def test_what_jobs_used_of_their_limits_is_told_to_their_user_only():
    made = replace(
        records(make_snapshot(pending(2, user=["alice", "bob"]))), last={"alice": [(61.0, 3607.0)], "": [(1.0, 9.0)]}
    )
    assert made.record("alice").limits_used == LimitsUsed(1, 61.0, 3607.0, 0)
    assert made.record("bob").limits_used is None
    assert made.record("").limits_used is None, "nobody knows who that is"
    assert {61, 3607} <= numbers(made.record("alice"))
    assert not {61, 3607} & numbers(made.record("bob"))
