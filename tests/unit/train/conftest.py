from dataclasses import replace

import pytest
from unit.train.windows import SMALL

from rltuned.lab.train import command


@pytest.fixture
def small_trainings(monkeypatch):
    """What a command trains is what its options say, but of few windows, in small steps, and two of them."""
    settings = command.settings

    def small(**options):
        made = settings(**options)
        few = replace(made.curriculum, candidates=SMALL.curriculum.candidates, window=SMALL.curriculum.window)
        sizes = {name: getattr(SMALL, name) for name in ("validation_window", "validation_windows", "evolution", "ppo")}
        return replace(made, curriculum=few, steps=(1, 1), **sizes)

    monkeypatch.setattr(command, "settings", small)
