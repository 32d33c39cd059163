"""Observations of generated queues, and a small model."""

import numpy as np
import pytest
from unit.generated_queues import QueueSettings, generate

from rltuned.observe import STATE_COLUMNS, observe
from rltuned.policy import files
from rltuned.policy.actor import Actor, Architecture
from rltuned.policy.files import TrainingPart


def observation(seed=0, **settings):
    snapshot, estimates = generate(np.random.default_rng(seed), QueueSettings(**{"jobs": (80, 120), **settings}))
    return observe(snapshot, snapshot.jobs.pending, estimates)


def actor_of(seed=0, name="small", **architecture):
    shape = Architecture(inputs=len(STATE_COLUMNS), **architecture)
    rng = np.random.default_rng(seed)
    weights = {key: rng.normal(0.0, 0.5, size=size).astype(np.float32) for key, size in shape.shapes().items()}
    weights["input.scale"] = np.full(shape.inputs, 0.5, dtype=np.float32)
    return Actor(name, shape, weights)


def saved(directory, name, seed):
    training = TrainingPart(
        method="imitation", data="generated", traces={}, seed=seed, revision="abc", settings={"steps": seed}
    )
    return files.save(actor_of(seed, name), directory, training, {"tau": 0.5}, observation().state[:5])


@pytest.fixture
def seen():
    return observation()
