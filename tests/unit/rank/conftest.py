"""Observations of generated queues, and a small model."""

from dataclasses import replace

import numpy as np
import pytest
from unit.generated_queues import QueueSettings, generate

from rltuned.decide.rank.actor import RUN_TIME, Actor, shapes
from rltuned.decide.see.observation import observe
from rltuned.records import model_files as files
from rltuned.records.model_files import TrainingPart


def observation(seed=0, **settings):
    snapshot, estimates = generate(np.random.default_rng(seed), QueueSettings(**{"jobs": (80, 120), **settings}))
    return observe(snapshot, snapshot.jobs.pending, estimates)


def actor_of(seed=0, name="small", hidden=6, **weights):
    """An actor with a network at work; a weight that is given by name replaces that which was drawn."""
    rng = np.random.default_rng(seed)
    drawn = {each: rng.normal(0.0, 0.5, size=shape).astype(np.float32) for each, shape in shapes(hidden).items()}
    return Actor(name, {**drawn, **weights})


def expecting(actor, *coefficients):
    """The actor with `RUN_TIME`."""
    return replace(actor, weights={**actor.weights, RUN_TIME: np.array(coefficients, dtype=np.float32)})


def golden(actor, rows=5):
    """Terms and moment of a generated queue, as `files.save` takes them."""
    made = actor.explained(observation())
    return made.terms[:rows], made.moment


def saved(directory, name, seed):
    training = TrainingPart(
        method="imitation", data="generated", traces={}, seed=seed, revision="abc", settings={"steps": seed}
    )
    actor = actor_of(seed, name)
    return files.save(actor, directory, training, {"tau": 0.5}, golden(actor))


@pytest.fixture
def seen():
    return observation()
