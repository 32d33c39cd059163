"""What a policy learned, as curves and as pictures."""

from dataclasses import replace

import numpy as np
import pytest
from unit.policy.conftest import actor_of

from rltuned.observe import FEATURES
from rltuned.policy.heuristics import by_name
from studies.portrait import NODES, PER_NODE, PICTURES, QUEUED, Cluster, Job, draw, portrait, scene

SHORT = {picture.name: replace(picture, values=picture.values[::8]) for picture in PICTURES}


def pictures(*names):
    return [SHORT[name] for name in names]


def silent():
    """An actor whose network says nothing: it is SAF."""
    actor = actor_of(residual="saf")
    for name, value in actor.weights.items():
        if name.startswith("layer"):
            value[:] = 0.0
    return actor


def test_a_silent_network_shows_the_rule_and_the_rule_falls_with_run_time_and_gpus_only():
    run_time, gpus, age, limit = portrait(silent(), pictures=pictures("run_time", "gpus", "age", "time_limit"))
    for panel in (run_time, gpus):
        for curve in panel.curves:
            np.testing.assert_allclose(curve.score, curve.rule, atol=1e-6)
            ratio = np.log(panel.x / panel.x[0]) / np.log1p(30 * 86400.0)
            np.testing.assert_allclose(curve.score, curve.score[0] - ratio, atol=2e-6)
    assert max(np.ptp(curve.score) for panel in (age, limit) for curve in panel.curves) < 2e-6


def test_a_policy_that_looks_at_age_shows_it_and_one_that_does_not_has_no_rule_to_dash():
    (panel,) = portrait(by_name("wfp3"), pictures=pictures("age"))
    assert all(curve.rule is None for curve in panel.curves)
    assert all(curve.score[-1] > curve.score[0] for curve in panel.curves)


def test_the_cluster_is_as_the_curve_says():
    free, scattered = FEATURES.index("free_nodes"), FEATURES.index("fragmentation")
    packed = scene(Job(), Cluster(0.5, 0.0), seed=1)
    spread = scene(Job(), Cluster(0.5, 1.0), seed=1)
    assert len(packed) == 1 + QUEUED
    assert (packed.features[0, free], spread.features[0, free]) == (0.5, 0.0)
    assert packed.features[0, scattered] == 0.0
    # Each node has half of its GPUs free: 1 − 16 · 4² / (64 · 8).
    assert spread.features[0, scattered] == pytest.approx(1 - NODES * 16 / (64 * PER_NODE))
    asked = scene(Job(gpus=24, run_time=60.0, time_limit=120.0, wait=5.0), Cluster(1.0), seed=1)
    assert (asked.gpus[0], asked.run_time[0], asked.time_limit[0], asked.wait[0]) == (24.0, 60.0, 120.0, 5.0)
    np.testing.assert_array_equal(asked.gpus[1:], packed.gpus[1:])


def test_the_same_seed_draws_the_same_bytes(tmp_path):
    actor = actor_of(residual="saf")
    one, two = (draw(actor, tmp_path / place, 3, pictures("fragmentation")) for place in ("a", "b"))
    assert [path.name for path in one] == ["fragmentation.png"]
    assert one[0].read_bytes() == two[0].read_bytes()
    assert one[0].read_bytes().startswith(b"\x89PNG")
    (other,) = draw(actor, tmp_path / "c", 4, pictures("fragmentation"))
    assert other.read_bytes() != one[0].read_bytes()
