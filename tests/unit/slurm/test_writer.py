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
        *((Field.SITE_FACTOR, value) for value in (True, "5", 1.5, 5, -5, MAX_FACTOR + 1, "1\nrelease 9")),
        *((Field.OVERSUBSCRIBE, value) for value in ("OK", "yes", "NO\n", 1)),
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


RAISED, ISOLATED = change(Field.SITE_FACTOR, SiteFactor(1)), change(Field.OVERSUBSCRIBE, "NO")


@pytest.mark.parametrize(
    ("said", "changes", "outcomes", "message"),
    [
        (
            "Changes to job priority are not persistent, change nice instead for job 7",
            *([RAISED], [Outcome.DENIED], "Changes to job priority"),
        ),
        (  # settles every field of its job
            "Job is no longer pending execution for job 7",
            *([RAISED, ISOLATED], [Outcome.GONE, Outcome.GONE], "Job is no longer pending"),
        ),
        # Of tasks of an array: settles nothing; and that some have finished is no complaint.
        ("7_3-5: Invalid job id specified\n7_1-2,7-20: No error", [RAISED], [None], "7_3-5: Invalid job id specified"),
        ("7_3-5: Job has already finished", [RAISED], [None], ""),
        ("", [ISOLATED], [None], ""),  # before 26.05 it is read back like everything else
    ],
)
def test_what_a_complaint_settles(slurm, said, changes, outcomes, message):
    slurm.answer("update", "", said + "\n", code=1)
    results = write(slurm, *changes)
    assert [result.outcome for result in results] == outcomes
    assert results[0].message.startswith(message)
    assert bool(results[0].message) == bool(message)


def test_nothing_is_known_of_changes_where_slurmctld_was_lost_on_the_way(slurm):
    slurm.answer("update", "", "Unexpected message received for job 7\n", code=1)
    with pytest.raises(SlurmUnavailableError, match="Unexpected message received"):
        write(slurm, RAISED, change(Field.SITE_FACTOR, SiteFactor(1), job=8))


def test_hostile_text_in_a_complaint_is_neutralised():
    found = complaints("evil\x1b[2J Access/permission denied for job 5\n")
    assert found[5].outcome is Outcome.DENIED
    assert found[5].message.isprintable()


def test_since_26_05_oversubscribe_cannot_be_read_back_so_that_scontrols_silence_about_the_job_counts(slurm):
    slurm.answer("version", "slurm 26.05.5\n")
    slurm.answer("update", "", "Invalid job id specified for job 2\n", code=1)
    results = write(slurm, ISOLATED, RAISED, change(Field.OVERSUBSCRIBE, "NO", job=2))
    assert [result.outcome for result in results] == [Outcome.APPLIED, None, Outcome.GONE]
    slurm.answer("update", "", "something else went wrong\n", code=1)  # of which job?
    assert write(slurm, ISOLATED)[0].outcome is None


def test_an_isolation_does_not_take_a_jobs_place_in_the_order_of_writing(slurm):
    changes = [
        Change(9, 1, Field.OVERSUBSCRIBE, "OK", "NO", position=0),
        Change(5, 1, Field.SITE_FACTOR, 10, SiteFactor(0), position=1),
        Change(5, 1, Field.OVERSUBSCRIBE, "OK", "NO", position=1),
        Change(9, 1, Field.SITE_FACTOR, 0, SiteFactor(10), position=0),
    ]
    ScontrolWriter(slurm.runner()).write(changes)
    assert [line.split()[1] for line in slurm.stdin.splitlines()] == ["JobId=5", "JobId=9"]
