"""What the values say of themselves: site factors, changes, rows of tables."""

import numpy as np
import pytest

from rltuned.core.changes import MAX_FACTOR, Change, Field, OverSubscribe, SiteFactor
from rltuned.core.plain_tables import job_table, node_table
from rltuned.core.tables import Category, distinct, owners


@pytest.mark.parametrize("value", [-1, -MAX_FACTOR, MAX_FACTOR + 1])
def test_a_site_factor_below_nought_cannot_be_made(value):
    assert (SiteFactor(0), SiteFactor(MAX_FACTOR)) == (0, MAX_FACTOR)
    with pytest.raises(ValueError, match=f"site factor {value} is not between 0 and {MAX_FACTOR}"):
        SiteFactor(value)


@pytest.mark.parametrize(("before", "after", "back"), [(5, 0, True), (5, 3, True), (0, 5, False), (3, 3, False)])
def test_what_takes_a_raise_or_a_part_of_it_back_says_so(before, after, back):
    assert Change(1, 0, Field.SITE_FACTOR, before, SiteFactor(after), 0).gives_back is back
    assert not Change(1, 0, Field.OVERSUBSCRIBE, "OK", OverSubscribe.NO.value, 0).gives_back


@pytest.mark.parametrize(
    ("tasks", "limit", "running", "able"),
    [
        *((0, 0, 0, 1), (1, 0, 0, 1), (20, 0, 7, 20), (20, 5, 0, 5)),
        *((20, 5, 3, 2), (20, 5, 5, 1), (3, 5, 0, 3), (3, 5, 9, 1)),
    ],
)
def test_a_waiting_array_stands_for_the_tasks_that_may_start(tasks, limit, running, able):
    jobs = job_table(2, job_id=[7, 8], array_tasks=[tasks, 4], array_limit=[limit, 0])
    assert jobs.startable_tasks(np.arange(2), {7: running}).tolist() == [able, 4]


def test_waits_are_compared_by_account_or_where_there_is_one_only_by_user():
    users, accounts = Category.of(["a", "b", "a"]), Category.of(["x", "x", "y"])
    assert owners(accounts, users) is accounts
    assert owners(Category.of(["x"] * 3), users) is users


@pytest.mark.parametrize("rows", [np.array([2, 0]), np.array([True, False, True]), slice(1, None)], ids=str)
def test_texts_are_taken_as_numbers_are(rows):
    texts = ["b", "", "a"]
    assert Category.of(texts)[rows].texts() == np.array(texts)[rows].tolist()


@pytest.mark.parametrize("n", [0, 1, 400])
def test_rows_are_distinct_by_all_of_their_values_whatever_kind_of_numbers_these_are(n):
    rng = np.random.default_rng(n)
    large = rng.choice([-1, 0, 2**31 - 2], (2, n)).astype(np.int32)
    columns = (*large, rng.choice([0.0, 0.5, np.inf], n), np.zeros(n, dtype=np.int32), rng.choice([0, 2**40], n))
    first, of = distinct(columns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    kinds = sorted(set(rows))
    assert [rows[row] for row in first.tolist()] == kinds
    assert first.tolist() == list(map(rows.index, kinds))
    assert [kinds[kind] for kind in of.tolist()] == rows


def test_rows_taken_from_a_table_keep_the_nodes_they_hold():
    jobs = job_table(3, held_nodes=[[0, 1], [], [2]])
    taken = jobs.take(np.array([2, 0]))
    assert [list(taken.nodes_of(row)) for row in range(2)] == [[2], [0, 1]]
    assert list(jobs.take(np.array([False, True, True])).job_id) == [2, 3]


def test_a_misspelt_column_is_refused():
    for made in (lambda: job_table(1, gpu=1), lambda: node_table(["n"], ["a"], 1, mems=1)):
        with pytest.raises(TypeError, match=r"unknown \w+ columns"):
            made()
