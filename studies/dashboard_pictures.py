"""``python -m studies.dashboard_pictures``: what the dashboards in ``deploy/grafana`` show of a week.

A demonstration of a week on a simulated cluster is kept in a real Prometheus; each panel's queries are asked there, and
Grafana's own components draw the answers in a real browser. Needs chromium, prometheus and npm; writes
docs/images/screens. Each picture names the titles of its panels and a digest of its dashboard (text chunks of PNG),
which a test compares with what the dashboards are now.
"""

import hashlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from rltuned.lab.demo.demo_clusters import EPOCH, Demo, DemoSettings
from studies.dashboards import DASHBOARDS, FOLDER

ROOT: Final = FOLDER.parents[1]
OUT: Final = ROOT / "docs" / "images" / "screens"
PAGE: Final = Path(__file__).with_suffix(".jsx")
RULES: Final = ROOT / "deploy" / "prometheus" / "rltuned.rules.yml"
PACKAGES: Final = (
    "@grafana/ui@11.6.16",
    "@grafana/data@11.6.16",
    "react@18.3.1",
    "react-dom@18.3.1",
    "esbuild@0.25.12",
)
FROM: Final = EPOCH + 86400
"""The first day fills the queue and the means over a day."""
TO: Final = EPOCH + 8 * 86400
STEP: Final = 1800
SPAN: Final = {"start": FROM, "end": TO, "step": STEP}
"""Of a line, in seconds."""
SETTINGS: Final = DemoSettings(jobs=4000, cluster="24x8:a100", load=1.0)
LABELS: Final = {"job": "rltuned", "instance": "slurmctld:9815"}
WIDTH: Final = 1400
"""Pixels of a picture."""
ROW: Final = 38
"""Pixels of a row of Grafana's grid, as in the page."""
FILES: Final = {".svg": "dataurl", ".woff": "dataurl", ".woff2": "dataurl", ".ttf": "empty"}


def needed(program: str) -> str:
    """Where a program of the machine is.

    Raises:
        SystemExit: nowhere.
    """
    found = shutil.which(program)
    if found is None:
        raise SystemExit(f"{program} is not installed (Debian: apt install chromium prometheus npm)")
    return found


def digest(dashboard: Mapping[str, Any]) -> str:
    """Of a dashboard's JSON."""
    return hashlib.sha256(json.dumps(dashboard, sort_keys=True).encode()).hexdigest()


def titles(dashboard: Mapping[str, Any]) -> str:
    """Of its panels, one a line."""
    return "\n".join(panel["title"] for panel in dashboard["panels"])


def play(file: TextIO) -> None:
    """A week of the demonstration, as OpenMetrics of each cycle."""
    with tempfile.TemporaryDirectory() as directory, Demo(SETTINGS, Path(directory)) as demo:
        while (now := demo.steered.clock.time()) < TO:
            demo.step()
            samples = [sample for family in demo.metrics.registry.collect() for sample in family.samples]
            for name, own, value in [*((one.name, one.labels, one.value) for one in samples), ("up", {}, 1)]:
                words = ",".join(f"{label}={json.dumps(word)}" for label, word in {**own, **LABELS}.items())
                file.write(f"{name}{{{words}}} {value} {now:.3f}\n")
    file.write("# EOF\n")


@contextmanager
def prometheus(directory: Path) -> Iterator[str]:
    """A server over what is in a directory; its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["--config.file=/dev/null", f"--storage.tsdb.path={directory}", "--storage.tsdb.retention.time=100y"]
    serve = [needed("prometheus"), *words, f"--web.listen-address={address}"]
    with subprocess.Popen(serve, stderr=subprocess.DEVNULL) as server:
        try:
            while server.poll() is None:
                try:
                    urllib.request.urlopen(f"http://{address}/-/ready", timeout=1.0)
                    break
                except OSError:
                    time.sleep(0.2)
            yield f"http://{address}"
        finally:
            server.terminate()


def keep(work: Path) -> Path:
    """The week in a directory of Prometheus, with what is recorded of it."""
    with (work / "week.om").open("w") as file:
        play(file)
    data = work / "data"
    made = [needed("promtool"), "tsdb", "create-blocks-from", "--max-block-duration=400h"]
    subprocess.run([*made, "openmetrics", "-q", work / "week.om", data], check=True)
    recorded = work / "recorded.yml"
    recorded.write_text(RULES.read_text().partition("\n  - name: rltuned\n")[0])  # the alerts are no pictures
    with prometheus(data) as url:
        bounds = ["--start", f"{EPOCH}", "--end", f"{TO}", "--eval-interval", "5m"]
        subprocess.run([*made, "rules", *bounds, "--url", url, "--output-dir", data, recorded], check=True)
    return data


def answers(url: str, panel: Mapping[str, Any]) -> list[Any]:
    """What Prometheus says to each query of a panel."""
    found = []
    for target in panel.get("targets", ()):
        query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "30m")
        what, asked = ("query", {"time": TO + 60}) if target.get("instant") else ("query_range", SPAN)
        address = f"{url}/api/v1/{what}?{urllib.parse.urlencode({'query': query, **asked})}"
        with urllib.request.urlopen(address) as said:  # noqa: S310 - the server above
            found.append(json.load(said)["data"]["result"])
    return found


def bundle(work: Path) -> None:
    """The page's script, with Grafana's components."""
    quiet = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run([needed("npm"), "install", *quiet, *PACKAGES], cwd=work, check=True)
    shutil.copy(PAGE, work / "page.jsx")
    loaders = [f"--loader:{ending}={loader}" for ending, loader in FILES.items()]
    words = ["--bundle", "--minify", "--log-level=error", "--outfile=page.js"]
    build = ["node_modules/.bin/esbuild", "page.jsx", *words, '--define:process.env.NODE_ENV="production"', *loaders]
    subprocess.run(build, cwd=work, check=True)


def picture(work: Path, url: str, name: str) -> None:
    """Write one."""
    dashboard = json.loads((FOLDER / name).read_text())
    panels = dashboard["panels"]
    shown = {"dashboard": dashboard, "answers": [answers(url, panel) for panel in panels], "width": WIDTH}
    script = json.dumps({**shown, "from": 1000 * FROM, "to": 1000 * TO})
    height = ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    (work / "page.html").write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css">'
        "<style>body { margin: 8px; font-family: sans-serif; background: #f4f5f5 }</style>"
        f'<div id="page"></div><script>window.PICTURE = {script}</script><script src="page.js"></script>'
    )
    fixed = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    window = [f"--window-size={WIDTH + 16},{height + 16}", "--virtual-time-budget=10000", "--screenshot=page.png"]
    shoot = [needed("chromium"), *fixed, *window, f"--user-data-dir={work / 'profile'}", "page.html"]
    subprocess.run(shoot, cwd=work, check=True, capture_output=True)
    about = PngInfo()
    about.add_text("titles", titles(dashboard))
    about.add_text("dashboard", digest(dashboard))
    with Image.open(work / "page.png") as drawn:
        few = drawn.convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
        few.save((OUT / name).with_suffix(".png"), pnginfo=about, optimize=True)


def main() -> None:
    """Write all pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        bundle(work)
        with prometheus(keep(work)) as url:
            for name in DASHBOARDS:
                picture(work, url, name)


if __name__ == "__main__":
    main()
