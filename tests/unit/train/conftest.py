from dataclasses import replace

import pytest
from unit.train.windows import SMALL

from rltuned.lab.train import command


@pytest.fixture
def small_trainings(monkeypatch):
    """What a command trains is what its options say, but of few windows, and in small steps."""
    settings = command.settings

    def small(**options):
        made = settings(**options)
        few = replace(made.curriculum, candidates=SMALL.curriculum.candidates)
        sizes = {name: getattr(SMALL, name) for name in ("validation_windows", "evolution", "ppo")}
        return replace(made, curriculum=few, **sizes)

    monkeypatch.setattr(command, "settings", small)
