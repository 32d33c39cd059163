"""Run times by GPU type, learned from finished jobs."""

import json
import math

import numpy as np
import pytest

from rltuned.cluster.shape import parse_shape
from rltuned.errors import WorkloadError
from rltuned.policy.heuristics import by_name
from rltuned.simulate.engine import Simulation
from rltuned.simulate.rankers import RuleRanker
from rltuned.workload.by_type import LAST, RunTimesByType, TypedPredictor
from rltuned.workload.jobs import Estimates, Source, workload
from rltuned.workload.predict import Kind
from rltuned.workload.speeds import Speeds

TYPES = ("k80", "p100")


def many_users(rng, users=30, noise=0.3, jobs=20, own=None):
    """Everybody's P100 is three times as fast, except for `own` users: as they say."""
    made = RunTimesByType()
    for user in range(users):
        level = rng.normal(8.0, 1.5)
        for _ in range(jobs):
            name = TYPES[rng.integers(2)]
            ratio = (own or {}).get(user, 3.0)
            log = level + rng.normal(0.0, noise) - (math.log(ratio) if name == "p100" else 0.0)
            made.ended(Kind(f"u{user}", gpus=1), name, math.exp(log))
    return made


def ratio(made, user, gpus=1):
    k80, p100 = made.predict(Kind(user, gpus=gpus), 1000.0, TYPES)
    return k80 / p100


def test_what_all_users_show_is_expected_of_a_user_who_has_shown_nothing():
    made = many_users(np.random.default_rng(1), users=150, noise=1.0)
    assert ratio(made, "new") == pytest.approx(3.0, rel=0.2)
    assert ratio(made, "new", gpus=8) == pytest.approx(3.0, rel=0.2)


def test_before_anything_is_known_all_types_take_as_long():
    np.testing.assert_array_equal(RunTimesByType().predict(Kind("a", gpus=1), 1000.0, TYPES), [1000.0, 1000.0])


def test_a_user_who_gains_more_is_found_where_his_run_times_are_alike_and_hardly_where_they_are_not():
    steady = many_users(np.random.default_rng(2), noise=0.1, own={7: 8.0, 8: 1.5})
    assert ratio(steady, "u7") > 3.5
    assert ratio(steady, "u8") < 2.5
    wild = many_users(np.random.default_rng(2), noise=2.5, own={7: 8.0})
    assert ratio(wild, "u7") < 6.0


def test_the_expected_run_time_is_on_what_the_last_jobs_ran_on():
    made = many_users(np.random.default_rng(3), noise=0.1)
    for _ in range(10):
        made.ended(Kind("u1", gpus=1), "k80", 1000.0)
    k80, p100 = made.predict(Kind("u1", gpus=1), 1000.0, TYPES)
    assert k80 == pytest.approx(1000.0)
    assert p100 == pytest.approx(333.0, rel=0.25)


def test_a_type_that_nobody_ran_on_is_like_the_mean_and_jobs_without_gpus_or_types_say_nothing():
    made = many_users(np.random.default_rng(4))
    before = len(made)
    made.ended(Kind("cpu", gpus=0), "", 100.0)
    made.ended(Kind("new", gpus=1), "", 100.0)
    assert len(made) == before
    k80, p100, h100 = made.predict(Kind("new", gpus=1), 1000.0, (*TYPES, "h100"))
    assert p100 < h100 < k80


def test_it_comes_back_from_json_and_other_things_are_refused():
    made = many_users(np.random.default_rng(5))
    again = RunTimesByType.from_json(json.loads(json.dumps(made.to_json())))
    np.testing.assert_allclose(
        again.predict(Kind("u1", gpus=1), 1e3, TYPES), made.predict(Kind("u1", gpus=1), 1e3, TYPES), rtol=0.02
    )
    for wrong in (None, {}, [["a", 1]], [["a", 1, []]], [["a", 1, [["k80", "x"]]]], [["a", 1, [["", 1.0]]]]):
        with pytest.raises(WorkloadError):
            RunTimesByType.from_json(wrong)


def test_memory_is_bounded_and_copies_are_independent():
    made = RunTimesByType(most_keys=3)
    for number in range(10 * LAST):
        made.ended(Kind(f"u{number % 5}", gpus=1), "k80", 100.0)
    assert len(made) == 3
    assert all(len(entry[2]) <= LAST for entry in made.to_json())
    other = made.copy()
    other.ended(Kind("x", gpus=1), "k80", 100.0)
    assert "x" not in {entry[0] for entry in made.to_json()}


def test_a_simulation_learns_what_its_jobs_took_on_the_types_that_they_got():
    shape = parse_shape("1x1:k80,1x1:p100")
    n = 120
    jobs = workload(
        Source("by hand"), np.arange(n) * 10.0, np.full(n, 1200.0), np.ones(n), user=[f"u{k % 10}" for k in range(n)]
    )
    speeds = Speeds(("k80", "p100"), np.tile(np.array([1.0, 3.0]), (n, 2, 1)))
    estimates = Estimates(np.full(n, 3600.0), np.full(n, 3600.0))
    predictor = TypedPredictor(jobs, estimates.time_limit)
    simulation = Simulation(shape, jobs, estimates, None, predictor, speeds=speeds)
    predictor.types_of = simulation.gpu_types_of
    simulation.run(RuleRanker(by_name("fifo")))
    assert set(simulation.gpu_types_of(np.arange(n))) == {"k80", "p100"}
    rows = np.arange(2)
    k80, p100 = predictor.by_type(rows, estimates.run_time[-2:], ("k80", "p100")).T
    np.testing.assert_allclose(k80 / p100, 3.0, rtol=0.3)
