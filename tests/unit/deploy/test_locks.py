"""The lock files name every package: they are installed without looking up what else a package needs (Makefile)."""

import subprocess
import sys


def test_what_the_lock_file_installs_lacks_nothing():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
