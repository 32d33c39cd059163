"""The page in a real browser: it can be read at 1280 and 390 pixels, dark and light, and nothing sticks out."""

import shutil
import subprocess

import matplotlib.image
import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser (Debian: chromium)")


def browse(directory, *words):
    fixed = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={directory}")
    return subprocess.run([CHROMIUM, *fixed, *words], capture_output=True, text=True, check=True, timeout=120)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_it_has_the_colours_of_the_scheme_and_something_to_see(made, tmp_path, width, scheme):
    picture = tmp_path / "page.png"
    browse(
        tmp_path / "profile",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        f"--window-size={width},2400",
        f"--screenshot={picture}",
        made[1].as_uri(),
    )
    pixels = matplotlib.image.imread(picture)[:, :, :3]
    assert pixels.shape[1] == width
    paper = pixels[5, 2]
    assert (paper.mean() < 0.2) if scheme == "dark" else (paper.mean() > 0.95)
    inked = np.abs(pixels - paper).max(axis=2) > 0.3
    assert 0.01 < inked.mean() < 0.3
    blue = (pixels[:, :, 2] - pixels[:, :, 0]) > 0.3  # rltuned's bars
    assert blue.sum() > 500


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen_and_one_drawing_of_each_chart_is_shown(made, tmp_path, width):
    # A page around it measures it: the report itself allows no script.
    measure = tmp_path / "measure.html"
    measure.write_text(f"""<!doctype html><iframe src="{made[1].as_uri()}" width="{width}" height="800"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument, shown = [...page.querySelectorAll("figure svg")].filter(x => x.clientWidth > 0);
  const small = shown.flatMap(x => [...x.querySelectorAll("text")]).map(x => x.getBoundingClientRect().height);
  document.title = JSON.stringify([page.documentElement.scrollWidth, shown.length, Math.min(...small)]);
}};
</script>""")
    words = ("--allow-file-access-from-files", "--virtual-time-budget=10000", "--window-size=1400,900", "--dump-dom")
    said = browse(tmp_path / "profile", *words, measure.as_uri()).stdout
    scroll, shown, smallest = eval(said.partition("<title>")[2].partition("</title>")[0])  # noqa: S307 - our own list
    assert scroll <= width
    assert shown == 4
    assert smallest >= 9.0, "text of a chart is too small to be read"
