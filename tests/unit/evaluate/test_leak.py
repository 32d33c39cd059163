"""Limits that tell what no site knows: the measure by hand, what people are told, and the published traces."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from unit.evaluate.small import jobs_of, report

from rltuned.lab.evaluate.evaluation_report import show, table
from rltuned.lab.evaluate.leak import LEAK, told
from rltuned.simulate.workload.simulated_estimates import estimate
from studies import lending, limits
from studies.traces import read

TRACES = Path(__file__).parents[3] / ".." / "shared" / "traces"
GRAHAM = 0.195


def users_jobs(n=600, **columns):
    """Jobs of three users and two sizes; each user and size has run times of its own."""
    rng = np.random.default_rng(5)
    user, gpus = rng.integers(3, size=n), rng.choice([1, 8], n)
    run = np.maximum(rng.lognormal(4.0 + 2.0 * user + gpus / 8.0, 1.0, n).round(), 1.0)
    return jobs_of(np.arange(n) * 60.0, run, gpus, user=[f"u{of}" for of in user], **columns)


def test_only_what_limits_tell_among_jobs_of_one_user_and_size_counts():
    jobs = users_jobs()
    rows = list(zip(jobs.user.codes.tolist(), jobs.gpus.tolist(), strict=True))
    theirs = np.array([3600.0 * 8.0 ** int(jobs.user.names[user][1:]) * gpus for user, gpus in rows])
    assert np.corrcoef(np.log(theirs), np.log(jobs.run_time))[0, 1] > 0.5, "users differ, and that is known"
    assert told(jobs, theirs) is None, "each user has one limit for a size"
    assert told(jobs, 2.0 * jobs.run_time) == pytest.approx(1.0)
    assert told(jobs, 1e9 / jobs.run_time) == pytest.approx(-1.0)
    any_of = np.random.default_rng(1).choice([3600.0, 86400.0, 604800.0], len(jobs))
    assert abs(told(jobs, any_of)) < 0.1
    # Half of the jobs tell all and half of them nothing, by hand.
    x, y = np.log(np.where(np.arange(len(jobs)) % 2, any_of, jobs.run_time)), np.log(jobs.run_time)
    for of in set(rows):
        same = np.array([row == of for row in rows])
        x[same], y[same] = x[same] - x[same].mean(), y[same] - y[same].mean()
    mixed = np.where(np.arange(len(jobs)) % 2, any_of, jobs.run_time)
    assert told(jobs, mixed) == pytest.approx((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def test_jobs_without_a_limit_and_too_few_jobs_tell_nothing():
    jobs = users_jobs()
    some = np.where(np.arange(len(jobs)) < 200, jobs.run_time, np.where(np.arange(len(jobs)) % 2, np.nan, np.inf))
    assert told(jobs, some) == pytest.approx(1.0)
    assert told(jobs.take(slice(50)), jobs.run_time[:50]) is None
    assert told(jobs, np.full(len(jobs), np.inf)) is None


@pytest.mark.parametrize(
    ("estimates", "own", "said"),
    [
        ("true", False, "limits tell run times (correlation 1.00), more than users' own do"),
        ("noisy:1.5", True, "limits tell run times (correlation 0.73), more than users' own do"),
        ("history", False, "limits tell run times (correlation 0.73), more than users' own do"),
        ("history", True, None),
        ("limit", True, None),
    ],
)
def test_the_first_line_says_where_limits_tell_more_than_users_do(estimates, own, said):
    any_of = np.random.default_rng(1).choice([604800.0, 864000.0], 600)
    jobs = users_jobs(time_limit=any_of) if own else users_jobs()
    found = report(jobs, estimates=estimates, policies=("saf",), windows=1)
    screen = io.StringIO()
    show(Console(file=screen), table(found))
    title = " ".join(screen.getvalue().split()).partition("1 windows")[0]  # of the width of the table
    assert (said in title) if said else ("limits" not in title)
    assert (found["meta"]["limits_tell"] > LEAK) == bool(said)


def trace(name):
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the project: what its limits tell is not measured here")
    return read(path, skip_bad=True)


def graham():
    jobs = trace("drac-graham.csv.gz")
    return limits.told(jobs, jobs.time_limit)


@pytest.mark.parametrize("protocol", [of for of in lending.PROTOCOLS if of.limits == lending.LIKE_GRAHAM])
def test_limits_that_are_drawn_and_called_evidence_tell_no_more_than_grahams_users_do(protocol):
    jobs, theirs = trace(protocol.file), graham()
    assert theirs.value == pytest.approx(GRAHAM, abs=0.001)
    assert told(jobs, jobs.time_limit) <= theirs.hi, "beyond what other users of Graham could tell"


@pytest.mark.parametrize("protocol", [of for of in lending.PROTOCOLS if of.limits == lending.TELL_MORE])
def test_drawn_limits_that_tell_more_are_called_so(protocol):
    jobs = trace(protocol.file)
    assert told(jobs, jobs.time_limit) > graham().hi
    assert protocol.limits not in lending.EVIDENCE


@pytest.mark.parametrize("protocol", [of for of in lending.PROTOCOLS if of.limits == lending.ONE_LIMIT])
def test_one_limit_for_all_tells_nothing_and_kills_nobody(protocol):
    trace(protocol.file)
    jobs = protocol.jobs(TRACES)
    assert told(jobs, jobs.time_limit) is None
    assert (jobs.run_time <= jobs.time_limit).all()


def test_users_own_limits_are_not_said_to_be_a_leak():
    jobs = trace("drac-graham.csv.gz")
    assert told(jobs, jobs.time_limit) < LEAK


@pytest.mark.parametrize("name", [*limits.WITHOUT, limits.PAI])
def test_limits_that_history_draws_tell_nearly_all(name):
    jobs = trace(name)
    for how in ("history", "noisy:1.5"):
        assert told(jobs, estimate(jobs, how, 7).time_limit) > max(LEAK, graham().hi)
