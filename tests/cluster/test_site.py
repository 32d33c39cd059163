"""Three minutes of `testbed site`: a site with everything, rltuned from its package on it. `make soak`: twenty."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.conftest import Clusters
from cluster.support import TESTBED, WANTED, run_testbed, session_name

SHORT = ("--minutes", "3", "--interval", "20", "--runs", "3", "--share", "1.0")


@pytest.mark.parametrize("release", dict.fromkeys((WANTED[0], WANTED[-1])))
def test_on_a_site_with_everything_raises_are_in_force_are_lent_for_and_go_away(
    clusters: Clusters,  # skips where no engine can be had
    release: str,
    tmp_path: Path,
):
    summary = tmp_path / "site.json"
    project = f"{session_name()}site-{release.replace('.', '')}"
    run_testbed("up", "--slurm", release, "--profile", "site", "--project", project)
    try:
        command = [sys.executable, TESTBED / "site_soak.py", "--project", project, *SHORT, "--json", summary]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    finally:
        run_testbed("down", "--project", project)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(summary.read_text())
    assert told["broken"] == []
    assert told["cycles_done"] == told["cycles"] > 5
    assert told["readings"] > 2_000
    # How many are raised is up to how the jobs of three minutes fall: 19 to 200 readings of them were seen.
    assert told["raised_readings"] > 5
    assert told["raised_in_force_mean"] > 0.1
    assert told["least_site_factor"] == told["below_own"] == 0
    assert 0 < told["writes"]["mean"] <= 32.0, "as many as are raised, and as many that are given back"
    assert told["book"]["settled"] > 0
    assert abs(told["book"]["difference"]) <= 0.02
    assert [kill["book_lost"] for kill in told["kills"]] == [0]
