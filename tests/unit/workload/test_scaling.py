"""Jobs that leave their nodes open: how long they run by their nodes, who they are, and limits that cover it."""

import numpy as np
import pytest

from rltuned.cluster.shape import parse_shape
from rltuned.errors import ConfigError
from rltuned.workload.jobs import Source, Workload, workload
from rltuned.workload.scaling import OpenSpec, Scaling, estimate_open, opened, scalings, slowest

SHAPE = parse_shape("4x8")


def jobs_of(gpus: list[int], run_time: float = 1000.0, **columns: object) -> Workload:
    return workload(Source("test"), np.arange(len(gpus)), run_time, gpus, **columns)


def test_more_nodes_share_the_parallel_part_and_pay_for_each_doubling() -> None:
    made = Scaling(parallel=0.8, sync=0.05)
    np.testing.assert_allclose(made.more_nodes(4)[[0, 1, 3]], [1.0, 0.2 + 0.4 + 0.05, 0.2 + 0.2 + 0.1])


def test_every_model_is_fitted() -> None:
    found = scalings()
    assert next(iter(found)) == "pooled"
    assert len(found) == 7
    for each in found.values():
        assert (each.more_nodes(64) > 0.0).all()
    # ImageNet hardly notices its nodes, recommendation does.
    assert found["imagenet"].more_nodes(4)[3] < 0.3
    assert found["ncf"].more_nodes(4)[3] > 0.6


@pytest.mark.parametrize(
    ("gpus", "each", "least", "asked", "most"),
    [(2, 1, 1, 2, 4), (8, 2, 1, 4, 8), (16, 4, 1, 4, 8), (32, 8, 1, 4, 8), (64, 8, 2, 8, 16), (6, 1, 2, 6, 12)],
)
def test_a_job_becomes_a_range_around_its_gpus_which_run_as_long_as_in_the_trace(
    gpus, each, least, asked, most
) -> None:
    made = opened(jobs_of([gpus], cpus=asked * 3), OpenSpec.parse("range:1"), 7, parse_shape("16x8"))
    assert (made.gpus[0], made.nodes[0], made.most_nodes[0], made.cpus[0]) == (each * least, least, most, 3 * least)
    curve = made.scaling[made.curve[0]]
    np.testing.assert_allclose(made.run_time[0] * curve[asked - 1] / curve[least - 1], 1000.0)


def test_a_range_is_no_wider_than_the_cluster_and_one_that_has_one_size_is_none() -> None:
    made = opened(jobs_of([8, 32, 1]), OpenSpec.parse("range:1"), 7, SHAPE)
    assert made.most_nodes.tolist() == [4, 4, 0]
    narrow = opened(jobs_of([8]), OpenSpec.parse("range:1"), 7, parse_shape("1x8"))
    assert (narrow.most_nodes[0], narrow.gpus[0], narrow.curve[0], narrow.run_time[0]) == (0, 8, -1, 1000.0)


def test_the_jobs_of_a_user_are_alike_whatever_the_window() -> None:
    users = [f"u{k % 40}" for k in range(400)]
    jobs = jobs_of([4] * 400, user=users)
    made = opened(jobs, OpenSpec.parse("range:0.5"), 7, SHAPE)
    open_users = {user for user, most in zip(users, made.most_nodes, strict=True) if most}
    assert len(open_users) in range(10, 31)
    assert len(set(zip(users, made.most_nodes.tolist(), made.curve.tolist(), strict=True))) == 40
    assert len(set(made.curve.tolist())) > 4
    part = opened(jobs.take(slice(100, 200)), OpenSpec.parse("range:0.5"), 7, SHAPE)
    assert part.curve.tolist() == made.curve[100:200].tolist()


@pytest.mark.parametrize("how", ["true", "noisy:1.5"])
def test_no_limit_is_too_short_for_the_slowest_number_of_nodes(how) -> None:
    jobs = jobs_of([64] * 300, run_time=np.linspace(60, 90_000, 300))
    made = opened(jobs, OpenSpec.parse("range:1"), 7, parse_shape("16x8"))
    known, factor = estimate_open(made, how, 7), slowest(made)
    assert (factor > 1.2).any()
    assert (known.time_limit >= made.run_time * factor * (1 - 1e-12)).all()
    if how == "true":
        assert known.run_time.tolist() == made.run_time.tolist()


@pytest.mark.parametrize("text", ["", "range", "range:2", "range:x", "half:0.5", "range:0.5:bert"])
def test_what_is_not_a_share_is_refused(text) -> None:
    with pytest.raises(ConfigError, match="range:SHARE or elastic:SHARE"):
        OpenSpec.parse(text)
