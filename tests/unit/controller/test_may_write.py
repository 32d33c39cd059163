"""What stands against writing, of several the first; that each is noted is tested where it comes from."""

from itertools import combinations

import pytest

from rltuned.controller.health.runtime import WANTED, Cause, Refusal, may_write

ORDER = [
    *("dry-run", "standby", "lock-lost", "paused", "demoted", "unseen", "prerequisite"),
    *("journal", "overloaded", "outdated"),
]
EVERY = [of for size in range(len(ORDER) + 1) for of in combinations(ORDER, size)]


@pytest.mark.parametrize("first", [None, *ORDER])
def test_each_cause_stands_against_writing_unless_one_before_it_does(first):
    refusal = None if first is None else Refusal(Cause(first), f"why {first}")
    standing = [of for of in EVERY if (of[0] if of else None) == first]
    assert standing
    for of in standing:
        assert may_write({Cause(name): f"why {name}" for name in reversed(of)}) == refusal


def test_who_waits_for_the_daemon_to_be_ready_need_not_wait_for_what_somebody_wants():
    assert {cause.value for cause in WANTED} == {"dry-run", "standby", "paused"}
