"""Status: the few facts that decide whether a write is allowed and whether it worked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.slurm.standin import RUNNING, job, rows, sprio_row

from rltuned.core.changes import SPLIT, JobStatus
from rltuned.core.errors import SlurmParseError
from rltuned.slurm import separated
from rltuned.slurm.cli import CliReader
from rltuned.slurm.commands import REGISTRY, SEPARATOR, STATUS_FIELDS
from rltuned.slurm.process import Answer, Runner
from rltuned.slurm.status import read_status


def read(slurm, jobs, ids=None, **others):
    slurm.queue(jobs, **others)
    return CliReader(slurm.runner()).status(ids)


def test_with_ids_a_running_one_is_told_not_pending_and_an_unknown_one_is_absent(slurm):
    found = read(slurm, [job(7), job(8, **RUNNING)], [8, 99])
    assert set(found) == {8}
    assert not found[8].pending


@pytest.mark.parametrize("ids", [[7], None])
def test_a_job_that_starts_between_two_commands_does_not_wait_without_a_site_factor(slurm, ids):
    slurm.queue([job(7)], factors={7: 500})
    asked = slurm.runner()

    class Starting(Runner):
        def __init__(self):
            pass

        def run(self, name, *words, stdin=""):
            answer = asked.run(name, *words, stdin=stdin)
            if name in {"status", "status-exclusive", "site-factors"}:
                slurm.queue([job(7, **RUNNING)])
            return answer

    found = read_status(Starting(), ids).get(7)
    assert found is None or not found.pending


def test_no_ids_at_all_is_not_the_same_as_all(slurm):
    assert read(slurm, [job(7)], []) == {}


def test_held_jobs_are_told(slurm):
    queue = [job(1, PriorityLong=0), job(2, Reason="JobHeldAdmin"), job(3, **{**RUNNING, "PriorityLong": "0"})]
    found = read(slurm, queue, [1, 2, 3])
    assert [found[number].held for number in (1, 2, 3)] == [True, True, False]


def test_while_any_task_of_an_array_runs_the_array_is_told_not_pending(slurm):
    sibling = job(55, **{**RUNNING, "ArrayJobID": "41", "ArrayTaskID": "2"})
    found = read(slurm, [sibling], [41])
    assert (set(found), found[41].pending, found[41].strange) == ({41}, False, "")
    assert read(slurm, [sibling], [99]) == {}


def test_a_requeued_task_is_told_under_the_arrays_id_with_the_site_factor_of_its_own_record(slurm):
    again = job(55, ArrayJobID=41, ArrayTaskID="2", SubmitTime=1795242999)
    for others in ([], [job(56, ArrayJobID=41, ArrayTaskID="3", SubmitTime=1795243999)]):
        for queue in ([again, *others], [*others, again]):
            for ids in ([41], None):
                found = read(slurm, queue, ids, factors={55: -1000, 56: -1000})[41]
                assert (found.pending, found.site_factor, found.submit_time) == (True, -1000, 1795242999)


def test_an_array_whose_waiting_tasks_differ_in_site_factor_is_not_understood(slurm):
    queue = [job(41, ArrayTaskID="3"), job(55, ArrayJobID=41, ArrayTaskID="2")]
    for ids in ([41], None):
        assert "site factor" in read(slurm, queue, ids, factors={41: 9, 55: -3})[41].strange
        # A task that was requeued has what its array had when it started.
        for factors in ({41: 9, 55: 9}, {41: 9, 55: 0}, {41: 0, 55: 9}):
            assert read(slurm, queue, ids, factors=factors)[41].site_factor == 9


def test_an_array_of_many_tasks_whose_user_makes_long_columns_takes_the_room_of_few_jobs(slurm):
    tasks = [job(41, ArrayTaskID=str(number)[:1], Partition="p" * 900) for number in range(5000)]
    slurm.queue([*tasks, job(55, ArrayJobID=41, ArrayTaskID="7", QOS="high"), job(7)], excluded={41: "n" * 900})
    reader = CliReader(slurm.runner(output_limit=300_000))
    found = reader.status(None)
    assert {number: one.request == SPLIT for number, one in found.items()} == {41: True, 7: False}
    assert not any(one.strange for one in found.values())
    slurm.answer("jobs", rows([job(41, ArrayTaskID="0-4999"), job(7)]))
    assert reader.snapshot(1795243060.0).jobs.job_id.tolist() == [41, 7]


@pytest.mark.parametrize("fields", [{"NumNodes": 4}, {"TimeLimit": "7-00:00:00"}, {"PriorityLong": 0}, {"QOS": "high"}])
def test_an_array_of_which_a_task_was_changed_alone_does_not_ask_for_what_it_asked_for(slurm, fields):
    masters = [job(41, ArrayTaskID="3"), job(41, ArrayTaskID="4")]
    before = read(slurm, masters, factors={41: 9})[41]
    changed = job(55, ArrayJobID=41, ArrayTaskID="2", **fields)
    for queue in ([*masters, changed], [changed, *masters]):
        assert read(slurm, queue, factors={41: 9, 55: 9})[41].request == SPLIT != before.request


@pytest.mark.parametrize("fields", [{"PriorityLong": "?"}, {"SubmitTime": "N/A"}, {"StateCompact": "?!"}])
def test_a_job_that_cannot_be_understood_is_neither_gone_nor_pending_and_costs_no_other(slurm, fields):
    queue = [job(7, **fields), job(8)]
    for ids in (None, [7, 8]):
        found = read(slurm, queue, ids)
        assert found[7] == JobStatus.not_understood(7, found[7].strange)
        assert "job 7" in found[7].strange
        assert not found[7].pending
        assert found[8] == read(slurm, [job(8)])[8]
    assert 7 not in read(slurm, queue, [8])
    assert 99 not in read(slurm, queue, [99])


def test_a_row_that_is_odd_is_its_jobs_and_no_others(slurm):
    slurm.queue([job(8)])
    slurm.answer("status", rows([job(7, Reason=f"a{SEPARATOR}b"), job(8)], STATUS_FIELDS))
    found = CliReader(slurm.runner()).status([7, 8, 9])
    assert {number: bool(one.strange) for number, one in found.items()} == {7: True, 8: False}
    # While a row does not say whose it is, no job that was asked for is gone.
    found = read(slurm, [job(7, JobID="?"), job(8)], [8, 9])
    assert {number: bool(one.strange) for number, one in found.items()} == {9: True, 8: False}
    found = read(slurm, [job(7), job(7, PriorityLong=5), job(8)])
    assert "appears twice" in found[7].strange
    assert not found[8].strange


# --- reading some of many ----------------------------------------------------------------------------------------


class Says(Runner):
    """Gives prepared answers."""

    def __init__(self, **answers):
        self.answers = {"version": "slurm-wlm 24.11.5\n"} | {
            name.replace("_", "-"): text for name, text in answers.items()
        }

    def run(self, name, *words, stdin=""):
        return Answer(REGISTRY[name], self.answers[name], "", 0, 0.0)


def table(*lines):
    return "".join("".join(f"{value}{SEPARATOR}" for value in line) + "\n" for line in lines)


NUMBERS = st.integers(1, 9)
IDS = st.one_of(NUMBERS.map(str), st.sampled_from(["1", "01", "0", "N/A", "?", "", "1_2", "é"]))
JOBS = st.builds(
    lambda own, array, task, state, priority, reason: job(
        JobID=own, ArrayJobID=array or own, ArrayTaskID=task, StateCompact=state, PriorityLong=priority, Reason=reason
    ),
    IDS,
    st.none() | NUMBERS.map(str),
    st.sampled_from(["N/A", "N/A", "1-4", "3", "x"]),
    st.sampled_from(["PD", "PD", "R", "?!"]),
    st.sampled_from(["0", "0", "0", "5", "kind"]),
    st.sampled_from(["Priority", "Priority", "None", "a\x1fb", "a\nb"]),
)
PLAIN = st.builds(job, st.integers(10, 60))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(JOBS, max_size=6),
    st.lists(PLAIN, max_size=12, unique_by=lambda one: one["JobID"]),
    st.lists(st.tuples(IDS, st.integers(-9, 9)), max_size=5),
    st.lists(st.tuples(IDS, IDS, st.sampled_from(["N/A", "1-4"]), st.sampled_from(["", "n1", "n[1"])), max_size=5),
    st.sets(st.integers(0, 30), max_size=6),
)
def test_reading_some_jobs_is_reading_all_and_keeping_those(strange, plain, factors, excluded, wanted):
    slurm = Says(
        status=rows([*plain, *strange], STATUS_FIELDS),
        site_factors="".join(sprio_row(number, factor) for number, factor in factors),
        excluded=table(*excluded),
    )
    narrow = outcome(slurm, sorted(wanted))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rltuned.slurm.status.rows_of", lambda answer, *_: answer)
        whole = outcome(slurm, sorted(wanted))
    if isinstance(whole, str) and not isinstance(narrow, str):
        # Most rows are strange, but none of these jobs'.
        assert "a format that rltuned does not know" in whole
        assert not any(found.strange for found in narrow.values())
    else:
        assert narrow == whole


def outcome(slurm, wanted):
    try:
        return read_status(slurm, wanted)
    except SlurmParseError as error:
        return str(error)


@pytest.mark.parametrize(
    "answer",
    [
        "".join(f"{number}{SEPARATOR}\n" for number in range(1, 9)),
        table(*[(number, number, "N/A", "PD") for number in range(1, 9)]),
        table(*[(number, number, *"abcdefgh") for number in range(1, 9)]),
        table(*[(number, number, *"abcdefg") for number in range(1, 9)])[:-1],
        table(*[(number, number, *"abcdefg") for number in range(1, 9)])[:-3],
    ],
)
def test_an_answer_that_is_cut_short_or_of_another_form_is_an_error_although_no_row_of_it_is_asked_for(answer):
    with pytest.raises(SlurmParseError):
        read_status(Says(status=answer, site_factors="", excluded=""), [99])


def test_of_a_long_queue_only_the_rows_that_are_asked_for_are_taken_apart():
    many = rows([job(number) for number in range(1, 2000)], STATUS_FIELDS)
    assert separated.rows_of(many, {"7", "1999"}, 2, len(STATUS_FIELDS)) == rows([job(7), job(1999)], STATUS_FIELDS)
