"""The writer: nothing but site factors, YES and NO ever reaches scontrol."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltuned.core.changes import MAX_FACTOR, Change, Field, Outcome, SiteFactor
from rltuned.core.errors import SlurmError, SlurmUnavailableError
from rltuned.slurm.writer import ScontrolWriter, complaints, update_word


def change(field, after, job=7, before=0):
    return Change(job_id=job, submit_time=1, field=field, before=before, after=after, position=0)


def write(slurm, *changes):
    return ScontrolWriter(slurm.runner()).write(changes)


def test_all_changes_go_to_one_scontrol_one_line_per_job_in_order(slurm):
    results = write(
        slurm,
        change(Field.SITE_FACTOR, SiteFactor(5), job=9),
        change(Field.SITE_FACTOR, SiteFactor(4000), job=3),
        change(Field.OVERSUBSCRIBE, "NO", job=9),
    )
    assert slurm.stdin == "update JobId=9 SiteFactor=5 OverSubscribe=NO\nupdate JobId=3 SiteFactor=4000\n"
    assert [call.strip() for call in slurm.calls if call.startswith("scontrol") and "-V" not in call] == ["scontrol"]
    assert all(result.sent and result.outcome is None for result in results)


def test_no_changes_start_no_process(slurm):
    assert write(slurm) == []
    assert slurm.calls == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (Field.SITE_FACTOR, True),
        (Field.SITE_FACTOR, "5"),
        (Field.SITE_FACTOR, 1.5),
        (Field.SITE_FACTOR, 5),
        (Field.SITE_FACTOR, -5),
        (Field.SITE_FACTOR, MAX_FACTOR + 1),
        (Field.SITE_FACTOR, "1\nrelease 9"),
        (Field.OVERSUBSCRIBE, "OK"),
        (Field.OVERSUBSCRIBE, "yes"),
        (Field.OVERSUBSCRIBE, "NO\n"),
        (Field.OVERSUBSCRIBE, 1),
    ],
)
def test_a_value_that_may_not_be_written_is_refused_and_the_others_are_sent(slurm, field, value):
    results = write(slurm, change(field, value), change(Field.SITE_FACTOR, SiteFactor(1)))
    assert (results[0].sent, results[0].outcome) == (False, Outcome.FAILED)
    assert "job 7" in results[0].message
    assert results[0].message.isprintable()
    assert slurm.stdin == "update JobId=7 SiteFactor=1\n"


@pytest.mark.parametrize("job", [0, -1, 2**32, True, "7", "7 Priority=0"])
def test_an_id_that_is_no_job_id_is_refused(slurm, job):
    assert write(slurm, change(Field.SITE_FACTOR, SiteFactor(1), job=job))[0].outcome is Outcome.FAILED
    assert slurm.stdin is None


@pytest.mark.parametrize("value", [-1, MAX_FACTOR + 1])
def test_there_is_no_site_factor_below_0_or_above_what_scontrol_takes(value):
    with pytest.raises(ValueError, match=f"site factor {value} is not between 0 and {MAX_FACTOR}"):
        SiteFactor(value)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(Field),
    st.one_of(
        st.integers(0, MAX_FACTOR).map(SiteFactor),
        *(st.integers(), st.text(max_size=40), st.booleans(), st.none(), st.floats()),
    ),
)
def test_whatever_the_value_a_word_is_harmless_or_refused(field, value):
    try:
        word = update_word(change(field, value))
    except SlurmError:
        return
    assert set(word) <= set(string.ascii_letters + string.digits + "=")
    assert word.startswith(f"{field.value}=")


def said(*lines):
    return "".join(line + "\n" for line in lines)


def test_a_change_that_slurm_would_not_keep_is_denied(slurm):
    slurm.answer(
        "update", "", said("Changes to job priority are not persistent, change nice instead for job 7"), code=1
    )
    assert write(slurm, change(Field.SITE_FACTOR, SiteFactor(1)))[0].outcome is Outcome.DENIED


def test_nothing_is_known_of_changes_where_slurmctld_was_lost_on_the_way(slurm):
    slurm.answer("update", "", said("Unexpected message received for job 7"), code=1)
    with pytest.raises(SlurmUnavailableError, match="Unexpected message received"):
        write(slurm, change(Field.SITE_FACTOR, SiteFactor(1)), change(Field.SITE_FACTOR, SiteFactor(1), job=8))


def test_a_complaint_settles_every_field_of_its_job(slurm):
    slurm.answer("update", "", said("Job is no longer pending execution for job 7"), code=1)
    results = write(slurm, change(Field.SITE_FACTOR, SiteFactor(1)), change(Field.OVERSUBSCRIBE, "NO"))
    assert [result.outcome for result in results] == [Outcome.GONE, Outcome.GONE]


def test_complaints_about_tasks_of_an_array_settle_nothing(slurm):
    slurm.answer("update", "", said("6_3-5: Invalid job id specified", "6_1-2,6-20: No error"), code=1)
    result = write(slurm, change(Field.SITE_FACTOR, SiteFactor(1), job=6))[0]
    assert (result.outcome, result.message) == (None, "6_3-5: Invalid job id specified")


def test_that_some_tasks_of_an_array_have_finished_is_no_complaint(slurm):
    slurm.answer("update", "", said("6_3-5: Job has already finished"), code=1)
    result = write(slurm, change(Field.SITE_FACTOR, SiteFactor(1), job=6))[0]
    assert (result.outcome, result.message) == (None, "")


def test_hostile_text_in_a_complaint_is_neutralised():
    found = complaints("evil\x1b[2J Access/permission denied for job 5\n")
    assert found[5].outcome is Outcome.DENIED
    assert found[5].message.isprintable()


def test_since_26_05_oversubscribe_cannot_be_read_back_so_that_scontrols_silence_about_the_job_counts(slurm):
    slurm.answer("version", "slurm 26.05.5\n")
    changes = [
        change(Field.OVERSUBSCRIBE, "NO", job=1),
        change(Field.SITE_FACTOR, SiteFactor(1), job=1),
        change(Field.OVERSUBSCRIBE, "NO", job=2),
    ]
    slurm.answer("update", "", said("Invalid job id specified for job 2"), code=1)
    assert [result.outcome for result in write(slurm, *changes)] == [Outcome.APPLIED, None, Outcome.GONE]


def test_since_26_05_a_complaint_that_names_no_job_leaves_oversubscribe_open(slurm):
    slurm.answer("version", "slurm 26.05.5\n")
    slurm.answer("update", "", said("something else went wrong"), code=1)
    assert write(slurm, change(Field.OVERSUBSCRIBE, "NO"))[0].outcome is None


def test_before_26_05_oversubscribe_is_read_back_like_everything_else(slurm):
    assert write(slurm, change(Field.OVERSUBSCRIBE, "NO"))[0].outcome is None


def test_an_isolation_does_not_take_a_jobs_place_in_the_order_of_writing(slurm):
    changes = [
        Change(9, 1, Field.OVERSUBSCRIBE, "OK", "NO", position=0),
        Change(5, 1, Field.SITE_FACTOR, 10, SiteFactor(0), position=1),
        Change(5, 1, Field.OVERSUBSCRIBE, "OK", "NO", position=1),
        Change(9, 1, Field.SITE_FACTOR, 0, SiteFactor(10), position=0),
    ]
    ScontrolWriter(slurm.runner()).write(changes)
    assert [line.split()[1] for line in slurm.stdin.splitlines()] == ["JobId=5", "JobId=9"]
