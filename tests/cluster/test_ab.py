"""`testbed ab`: the same jobs on two real clusters, one with Slurm alone, one with rltuned."""

import json
import os
from pathlib import Path

from cluster.support import WANTED, run_testbed, session_name

RELEASE = "24.11" if "24.11" in WANTED else WANTED[-1]


def test_a_window_of_a_trace_runs_on_nodes_of_eight_gpus_as_its_own_users_with_a_past(tmp_path: Path):
    out, trace = tmp_path / "ab.json", tmp_path / "trace.csv"
    rows = [f"{40 * row},{60 + 900 * (row * 7 % 11 < 4)},{1 + 3 * (row % 3)},user{row % 5}" for row in range(400)]
    trace.write_text("\n".join(["submit_time,run_time,num_gpus,user", *rows]) + "\n")
    name = f"{session_name()}{os.getpid()}-abt"
    options = ("--slurm", RELEASE, "--arms", "multifactor,saf", "--draws", "1", "--json", str(out), "--project", name)
    run_testbed("ab", *options, "--trace", str(trace), "--nodes", "2", "--jobs", "40", "--minutes", "1")
    found = json.loads(out.read_text())
    (run,) = found["runs"]
    assert [pool["gpus_per_node"] for pool in run["cluster"]["pools"]] == [8, 8]
    for arm in run["arms"].values():
        assert set(arm["state"]) == {"COMPLETED"}
    daemon = run["arms"]["saf"]["daemon"]
    assert daemon["history"] == len(run["site"]["past"]) > 100
    assert daemon["changes"] > 0
    assert found["summary"]["jobs"] >= 40  # and those that wait when it begins
    assert len(found["summary"]["groups"]["account"]) == 5
    assert set(found["summary"]["prediction"]) == {"multifactor", "saf"}
