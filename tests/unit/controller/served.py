"""A real daemon process on the model cluster: what `test_service` starts. Arguments: config file, then flags."""

import os
import sys
import time
from pathlib import Path

from unit.controller.model_slurm import ModelSlurm

from rltuned.controller.cycle.service import serve
from rltuned.controller.health.clock import SystemClock
from rltuned.core.config import resolve
from rltuned.core.errors import RltunedError


class Hasty(SystemClock):
    """The real time, but the model's time-outs pass quickly."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.05))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    path = Path(sys.argv[1])
    slurm = ModelSlurm(Hasty())
    slurm.up = "--down" not in sys.argv
    for number in range(8):
        user = str(61001 + number % 2) if "--users" in sys.argv else "alice"
        slurm.submit(1000 - number, time_limit=60.0 * (8 - number), user=user)

    if "--undone" in sys.argv:  # backfill puts back what the first cycle wrote
        slurm.before_read = lambda _: slurm.backfill_goes_on() if len(slurm.log) == 7 else None

    if "--wait" in sys.argv:  # a cycle that has begun goes on once the file is there
        gate = path.with_name("go-on")

        def wait(_number):
            say("reading")
            while not gate.exists():
                time.sleep(0.02)

        slurm.before_read = wait

    def writer(_section):
        say("writer constructed")
        return slurm.writer()

    try:
        serve(
            lambda: resolve(path.read_text(), path.name, os.environ, {}),
            dry_run="--dry-run" in sys.argv,
            once="--once" in sys.argv,
            connect_reader=lambda _section: slurm.reader(),
            connect_writer=writer,
        )
    except RltunedError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    finally:
        say(f"order {slurm.order()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
