"""Pictures in the pages show what the program says and what the dashboards are now."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from studies.dashboard_pictures import FOLDER, OUT, ROOT, digest, titles
from studies.dashboards import DASHBOARDS

SPEAKERS = ("rltuned", "docker-slurm-testbed", "deploy")


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]{4,}", text))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_picture_of_a_dashboard_is_of_this_dashboard(name: str) -> None:
    dashboard = json.loads((FOLDER / name).read_text())
    with Image.open((OUT / name).with_suffix(".png")) as picture:
        about, pixels = picture.text, np.asarray(picture.convert("L"))
    assert about["titles"] == titles(dashboard)
    assert about["dashboard"] == digest(dashboard), "python -m studies.dashboard_pictures draws it again"
    assert 0.01 < (pixels < 200).mean() < 0.3, "something is drawn"


@pytest.mark.parametrize("name", ["doctor", "plan"])
def test_a_picture_of_a_terminal_has_words_of_the_program_alone(name: str) -> None:
    texts = [
        path.read_text(errors="ignore")
        for folder in SPEAKERS
        for path in (ROOT / folder).rglob("*.*")
        if path.is_file()
    ]
    known = words("\n".join(texts))
    shown = " ".join(re.findall(r"<text[^>]*>([^<]*)", (OUT / f"{name}.svg").read_text()))
    assert words(shown.replace("&#160;", " ")) - known == set(), "python -m studies.screens takes it again"
