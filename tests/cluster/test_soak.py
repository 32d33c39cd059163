"""Two minutes of `testbed soak`: faults in any order on a busy cluster, and the promises checked after each.

The same seed has the same faults in the same order; where they hit, the machine decides. `make soak` takes longer.
"""

import json
import subprocess
import sys
from pathlib import Path

from cluster.support import TESTBED, Cluster, on_one_release


@on_one_release
def test_whatever_happens_to_a_busy_cluster_for_two_minutes_nothing_of_ours_is_left(cluster: Cluster, tmp_path: Path):
    summary = tmp_path / "soak.json"
    command = [sys.executable, TESTBED / "soak.py", "--project", cluster.project, "--minutes", "2", "--seed", "11"]
    done = subprocess.run(
        [*command, "--fixed-clock", "--json", summary], check=False, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(summary.read_text())
    assert told["violations"] == []
    assert sum(told["faults"].values()) >= 1
    assert told["checks"]["stands"] > 0, "rltuned wrote nothing: nothing was tried"
