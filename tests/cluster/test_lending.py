"""Four minutes of `testbed lending`: a long queue, the installed daemon, and what is promised of lending.

The hour that the numbers of docs/testbed.md are of is the same command.
"""

import json
import subprocess
import sys
from pathlib import Path

from cluster.support import TESTBED, Cluster, on_the_oldest

SHORT = ("--minutes", "3", "--interval", "10", "--runs", "2", "--share", "1.0")
"""Cycles of ten seconds, and jobs of that length: a job that may lend all its wait can do so after a minute."""


@on_the_oldest  # on 26.05 the soak goes on for as long, on 24.11 the A/B
def test_raised_jobs_are_lent_for_nobody_falls_below_slurms_own_and_the_book_agrees_with_sacct(
    cluster: Cluster, tmp_path: Path
):
    summary = tmp_path / "lending.json"
    command = [sys.executable, TESTBED / "lending.py", "--project", cluster.project, *SHORT, "--json", summary]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(summary.read_text())
    assert told["broken"] == []
    assert told["cycles_done"] == told["cycles"] > 10
    assert told["readings"] > 2_000
    assert told["least_site_factor"] == told["below_own"] == 0
    assert told["raised_in_force_mean"] > 1.0
    assert 0 < told["writes"]["mean"] <= 16.0, "no more than are raised"
    assert told["book"]["started_raised"] > 5
    assert told["book"]["settled"] > 5
    assert abs(told["book"]["difference"]) <= 0.02
    assert told["restore"]["seconds"] <= 10.0
    assert [kill["book_lost"] for kill in told["kills"]] == [0]
