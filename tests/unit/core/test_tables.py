"""What the tables say of their rows."""

import numpy as np
import pytest

from rltuned.core.plain_tables import job_table
from rltuned.core.tables import Category, owners


@pytest.mark.parametrize(
    ("tasks", "limit", "running", "able"),
    [
        (0, 0, 0, 1),
        (1, 0, 0, 1),
        (20, 0, 7, 20),
        (20, 5, 0, 5),
        (20, 5, 3, 2),
        (20, 5, 5, 1),
        (3, 5, 0, 3),
        (3, 5, 9, 1),
    ],
)
def test_a_waiting_array_stands_for_the_tasks_that_may_start(tasks, limit, running, able):
    jobs = job_table(2, job_id=[7, 8], array_tasks=[tasks, 4], array_limit=[limit, 0])
    assert jobs.startable_tasks(np.arange(2), {7: running}).tolist() == [able, 4]


def test_waits_are_compared_by_account_or_where_there_is_one_only_by_user():
    users, accounts = Category.of(["a", "b", "a"]), Category.of(["x", "x", "y"])
    assert owners(accounts, users) is accounts
    assert owners(Category.of(["x"] * 3), users) is users
