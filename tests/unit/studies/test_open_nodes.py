"""Jobs that leave their nodes open: who they are, limits that cover it, and what is measured of them."""

import numpy as np
import pytest

from rltuned.lab.evaluate.case import cases
from rltuned.lab.evaluate.evaluation_settings import EvaluationSettings
from rltuned.lab.evaluate.measure import simulate_case
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.windows import Window
from rltuned.simulate.shape import parse_shape
from rltuned.simulate.workload.jobs import Source, Workload, workload
from studies.elastic import Elastic
from studies.open_nodes import estimate_open, of_open, opened, runs_of, slowest

SHAPE = parse_shape("4x8")


def jobs_of(gpus: list[int], run_time: float = 1000.0, **columns: object) -> Workload:
    return workload(Source("test"), np.arange(len(gpus)), run_time, gpus, **columns)


@pytest.mark.parametrize(
    ("gpus", "each", "least", "asked", "most"),
    [(2, 1, 1, 2, 4), (8, 2, 1, 4, 8), (16, 4, 1, 4, 8), (32, 8, 1, 4, 8), (64, 8, 2, 8, 16), (6, 1, 2, 6, 12)],
)
def test_a_job_becomes_a_range_around_its_gpus_which_run_as_long_as_in_the_trace(
    gpus, each, least, asked, most
) -> None:
    made = opened(jobs_of([gpus], cpus=asked * 3), 1.0, 7, parse_shape("16x8"))
    assert (made.gpus[0], made.nodes[0], made.most_nodes[0], made.cpus[0]) == (each * least, least, most, 3 * least)
    curve = made.scaling[made.curve[0]]
    np.testing.assert_allclose(made.run_time[0] * curve[asked - 1] / curve[least - 1], 1000.0)


def test_a_range_is_no_wider_than_the_cluster_and_one_that_has_one_size_is_none() -> None:
    made = opened(jobs_of([8, 32, 1]), 1.0, 7, SHAPE)
    assert made.most_nodes.tolist() == [4, 4, 0]
    narrow = opened(jobs_of([8]), 1.0, 7, parse_shape("1x8"))
    assert (narrow.most_nodes[0], narrow.gpus[0], narrow.curve[0], narrow.run_time[0]) == (0, 8, -1, 1000.0)


def test_the_jobs_of_a_user_are_alike_whatever_the_window() -> None:
    users = [f"u{k % 40}" for k in range(400)]
    jobs = jobs_of([4] * 400, user=users)
    made = opened(jobs, 0.5, 7, SHAPE)
    open_users = {user for user, most in zip(users, made.most_nodes, strict=True) if most}
    assert len(open_users) in range(10, 31)
    assert len(set(zip(users, made.most_nodes.tolist(), made.curve.tolist(), strict=True))) == 40
    assert len(set(made.curve.tolist())) > 4
    part = opened(jobs.take(slice(100, 200)), 0.5, 7, SHAPE)
    assert part.curve.tolist() == made.curve[100:200].tolist()


@pytest.mark.parametrize("how", ["true", "noisy:1.5"])
def test_no_limit_is_too_short_for_the_slowest_number_of_nodes(how) -> None:
    jobs = jobs_of([64] * 300, run_time=np.linspace(60, 90_000, 300))
    made = opened(jobs, 1.0, 7, parse_shape("16x8"))
    known, factor = estimate_open(made, how, 7), slowest(made)
    assert (factor > 1.2).any()
    assert (known.time_limit >= made.run_time * factor * (1 - 1e-12)).all()
    if how == "true":
        assert known.run_time.tolist() == made.run_time.tolist()


def simulated(jobs, cluster, policy, *, elastic=False):
    """What is measured of all these jobs, all of whose users leave their nodes open."""
    shape, settings = parse_shape(cluster), EvaluationSettings("t", cluster, policies=(policy,))
    made = opened(jobs, 1.0, 7, shape)
    (case,) = cases(made, estimate_open(made, "true", 7), shape, [Window(0, 0, len(made))])
    chosen = contender(policy, settings)
    if elastic:
        chosen = Elastic(policy, settings.simulated, chosen.policy)
    times = runs_of(simulate_case(case, chosen))
    return case.metrics(*times) | of_open(case, *times)


def test_jobs_that_leave_their_nodes_open_are_measured_apart_from_the_others():
    # A range of one to four nodes with one GPU each takes all four, and runs as long as in the trace.
    jobs = workload(Source("t"), [0.0, 0.0], [100.0, 50.0], [4, 1])
    values = simulated(jobs, "4x2", "saf")
    assert (values["jct_open"], values["jct_rigid"], values["gpu_seconds"]) == pytest.approx((100, 50, 450))
    assert values["utilization"] == pytest.approx(100 * 450 / 800)


def test_elastic_jobs_make_room_for_others_and_take_what_is_left_idle():
    # The first job, 4 GPUs of the trace, takes all 8. The second one comes and would wait for hours.
    jobs = workload(Source("t"), [0.0, 1000.0], [40_000.0, 2_000.0], [4, 1])
    still, moving = (simulated(jobs, "8x1", "rl", elastic=elastic) for elastic in (False, True))
    assert moving["wait_rigid"] < 0.1 * still["wait_rigid"]
    # It gave one node back for 2,000 s, and took it again.
    assert moving["jct_open"] < 1.1 * still["jct_open"]
