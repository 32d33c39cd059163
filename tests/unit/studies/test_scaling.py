"""How long jobs run by their nodes."""

import numpy as np

from rltuned.decide.resizing import POOLED, Scaling
from studies.scaling import scalings


def test_more_nodes_share_the_parallel_part_and_pay_for_each_doubling() -> None:
    made = Scaling(parallel=0.8, sync=0.05)
    np.testing.assert_allclose(made.more_nodes(4)[[0, 1, 3]], [1.0, 0.2 + 0.4 + 0.05, 0.2 + 0.2 + 0.1])


def test_every_model_is_fitted() -> None:
    found = scalings()
    assert next(iter(found)) == "pooled"
    assert found["pooled"] == POOLED
    assert len(found) == 7
    for each in found.values():
        assert (each.more_nodes(64) > 0.0).all()
    # ImageNet hardly notices its nodes, recommendation does.
    assert found["imagenet"].more_nodes(4)[3] < 0.3
    assert found["ncf"].more_nodes(4)[3] > 0.6
