"""How much code the daemon's process loads, beside the command line that starts it."""

import subprocess
import sys

MOST = 19_200
"""Lines. A ratchet: 18,000 is what is asked for. Whoever loads less lowers it, and nobody raises it."""
LOADED = """
import sys
from pathlib import Path
import rltuned.controller.cycle.service, rltuned.slurm.snapshot
files = {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "rltuned"}
for name, file in files.items():
    print(len(Path(file).read_text().splitlines()), name)
"""


def test_the_daemons_process_loads_no_more_than_it_needs():
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    lines = {name: int(count) for count, name in (line.split() for line in run.stdout.splitlines())}
    assert not [name for name in lines if name.startswith(("rltuned.lab", "rltuned.simulate.workload"))]
    assert sum(lines.values()) <= MOST, sorted(lines.items(), key=lambda item: -item[1])[:30]
