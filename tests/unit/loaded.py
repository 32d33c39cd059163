"""What a daemon's process loads, for `test_footprint`: a script for a process of its own.

Arguments: ``run CONFIG RECORD``, or ``trouble DIRECTORY``.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path


def ours():
    return {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "rltuned"}


def run(config, record):
    """Lines of each module, after ``rltuned run`` has made a cycle, which leaves a record of its decision."""
    from rltuned.cli.main import main

    def end_after_a_cycle():
        while not Path(record).exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_after_a_cycle, daemon=True).start()
    with contextlib.suppress(SystemExit):
        main(["run", "--config", config])
    return {name: len(Path(file).read_text(encoding="utf-8").splitlines()) for name, file in ours().items()}


def trouble(directory):
    """What a daemon does that writes, fails, is outdated and gives back; and what of rltuned's was loaded for that."""
    import rltuned.cli.daemon
    import rltuned.cli.main
    import rltuned.controller.cycle.service  # noqa: F401 - as ``rltuned run`` does

    started = ours().keys()
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from unit.controller.model_slurm import ModelSlurm, VirtualClock
    from unit.controller.support import make_daemon

    helped = ours().keys() - started
    from rltuned.core.config import Config, CycleSection, Stage, StateSection

    slurm, root = ModelSlurm(VirtualClock()), Path(directory)
    for number in range(8):
        slurm.submit(1000 - number, time_limit=60.0 * (8 - number))
    state = StateSection(directory=root / "state", mirror=root / "mirror")
    config = Config(cycle=CycleSection(stage=Stage.ACTIVE), state=state)
    daemon = make_daemon(config, slurm.reader(), slurm.writer, slurm.clock)

    def tick():
        slurm.clock.sleep(60.0)
        return daemon.tick()

    did = {"written": len(tick().results)}
    slurm.backfill_goes_on()
    did["undone"] = tick().undone
    slurm.up = False
    did["outcome"] = tick().outcome
    slurm.up = True
    did["given back"] = daemon.restoring.give_all_back()
    slurm.clock.sleep(10_000.0)
    did["sentences"] = [tick().sentence for _ in range(3)]
    daemon.reload(lambda: config.model_copy(update={"cycle": CycleSection(stage=Stage.SHADOW)}))
    did["restored"] = tick().restored
    daemon.stop()
    return {"did": did, "helped": sorted(helped), "late": sorted(ours().keys() - started)}


if __name__ == "__main__":
    print(json.dumps({"run": run, "trouble": trouble}[sys.argv[1]](*sys.argv[2:])))  # noqa: T201
