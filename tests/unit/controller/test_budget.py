from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.controller.model_slurm import ModelSlurm, VirtualClock

from rltuned.controller.health.rpc_budget import Budget
from rltuned.core.config import WriteSection
from rltuned.slurm.port import Privilege

FACTS = ModelSlurm(VirtualClock()).reader().facts()


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 30), st.integers(0, 5)), max_size=40))
def test_never_more_is_sent_than_bucket_and_refill_allow(steps):
    budget = Budget(limited=True, burst=24, rate=1.5, per_cycle=5000)
    now = sent = 0.0
    for wanted, pause, reads in steps:
        now += pause
        grant = budget.allowance(wanted, now)
        budget.spend(0, now, writes=grant)
        sent += grant
        assert sent <= 24 + 1.5 * now + 1e-6
        budget.spend(reads, now)


def test_reads_count_although_they_are_never_refused():
    budget = Budget(limited=True, burst=24, rate=1.0, per_cycle=5000)
    budget.spend(20, 0.0)
    assert budget.allowance(100, 0.0) == 4
    assert budget.allowance(100, 0.0, keep=3) == 1
    budget.spend(14, 0.0)
    assert budget.allowance(100, 0.0) == 0
    assert budget.wait(5, 0.0) == pytest.approx(15.0)


def test_without_the_limiter_only_the_cap_per_cycle_counts():
    budget = Budget(limited=False, burst=24, rate=1.5, per_cycle=100)
    assert budget.allowance(500, 0.0) == 100
    budget.spend(0, 0.0, writes=100)
    assert budget.allowance(1, 0.0) == 0
    budget.start_cycle()
    assert budget.allowance(500, 0.0) == 100
    assert budget.wait(10, 0.0) == 0.0


@pytest.mark.parametrize(
    ("changes", "limited"),
    [
        ({"rate_limiter": False}, False),
        ({"rate_limiter": True, "privilege": Privilege.SLURM_USER}, False),
        ({"rate_limiter": True, "privilege": Privilege.OPERATOR}, True),
        ({"rate_limiter": True, "privilege": Privilege.ADMIN}, True),
    ],
)
def test_only_root_and_slurm_user_are_exempt_from_the_limiter(changes, limited):
    assert Budget.of(WriteSection(), replace(FACTS, **changes)).limited is limited


def test_a_smaller_bucket_of_the_cluster_shrinks_ours_and_unknown_facts_mean_care():
    facts = replace(FACTS, rate_limiter=True, rate_bucket=10, rate_refill=1.0)
    budget = Budget.of(WriteSection(), facts)
    assert (budget.burst, budget.rate) == (7.5, 0.75)
    assert Budget.of(WriteSection(), None).limited
