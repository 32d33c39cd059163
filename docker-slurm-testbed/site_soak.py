#!/usr/bin/env python3
"""A site with everything, rltuned from its package on it, and what is promised, measured from outside.

    docker-slurm-testbed/testbed site --slurm 24.11 --minutes 20 --json SITE.json

As `testbed lending`, on the profile "site": typed GPUs, slices, MPS, arrays, dependencies, a scavenger partition whose
jobs are preempted, nodes that power saving switches on, a reservation for maintenance, priorities that are calculated
every five minutes only and long backfill passes. Ends with 1 also where squeue shows raised jobs too seldom with what
raises them, where anything of ours is left in the queue half a minute after the restore, or where doctor says anything
that is not expected of such a site.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

import lending
from lending import LONG, LOOK, RLTUNED, ROUNDING, Lending

HELD: Final = 0.98
"""Share of the readings of raised jobs that show what raises them …"""
FEW_HELD: Final = 0.9
"""… and in a run of minutes, in which two readings of 60 are 3 %, …"""
FEW: Final = 2
"""… and this many may always show less: of 19 readings in a short run two are 11 %."""
GIVEN_BACK: Final = 30.0
"""Seconds in which nothing of ours is left, as squeue shows it."""
AFTERWARDS: Final = 30.0
"""Seconds for which nothing comes back: backfill passes that had begun before are over."""
EXPECTED: Final = frozenset({("in force", "warning")})
"""Of doctor's findings that are not "ok" or "note": backfill undoes writes here, now and then often."""


SHAPES: Final = {
    "--gres=gpu:1": 30,
    "--gres=gpu:2": 8,
    "--gres=gpu:A100:1": 12,
    "--gres=gpu:A100:2": 6,
    "--gres=gpu:A100:4": 4,
    "-N2 --gres=gpu:A100:4": 2,
    "--gres=gpu:V100:1": 8,
    "--gres=gpu:V100:2": 4,
    "--gres=gpu:1g.10gb:1": 6,
    "--gres=mps:50": 4,
    "-n8": 6,
    "--gres=gpu:1 --array=1-6%3": 2,
    "--gres=gpu:1 $(squeue -h -t R -o %A | sed 's/^/-d afterany:/;q')": 4,
    "-p scavenger --gres=gpu:1": 8,
    "-p scavenger --gres=gpu:V100:1 --array=1-4": 2,
    "--gres=gpu:A100:1 --qos=high": 2,
}
"""What jobs ask for, and how often."""


class Site(Lending):
    """One run."""

    profile = "site"
    shapes = SHAPES

    def slurm_conf(self) -> dict[str, str | None]:
        """The profile has it all."""
        return {}

    def install_program(self) -> None:
        """The package; and what a site's admins do beside it."""
        self.project.install_package()
        words = "StartTime=now+20minutes Duration=60 Nodes=v100-2 Users=root Flags=MAINT,IGNORE_JOBS"
        self.sh(f"scontrol delete ReservationName=upkeep; scontrol create reservation ReservationName=upkeep {words}")

    def kill(self) -> None:
        """Doctor looks at the daemon at work, before it is killed."""
        self.doctor()
        super().kill()

    def doctor(self) -> None:
        """What it says of a site like this, and with which exit code it ends."""
        done = self.project.execute(f"cd /; runuser -u rltuned -- {RLTUNED} doctor --json", check=False)
        said: list[dict[str, Any]] = json.loads(done.stdout or "[]")
        findings = [one for one in said if one["severity"] not in {"ok", "note"}]
        strange = [one for one in findings if (one["subject"], one["severity"]) not in EXPECTED]
        if strange or not said or done.returncode or done.stderr:
            self.seen.broken.append(f"doctor ends with {done.returncode} and says {strange} {done.stderr[-500:]}")

    def restore(self) -> None:
        """Nothing is left in the queue as squeue shows it, and nothing comes back."""
        began = time.monotonic()
        super().restore()
        gone = 0.0
        while (passed := time.monotonic() - began) < (gone or GIVEN_BACK) + AFTERWARDS:
            left = self.above()
            gone = gone if left else gone or passed
            if left and passed > GIVEN_BACK:
                self.seen.broken.append(f"{passed:.0f} s after a restore squeue shows raised jobs: {left}")
                break
            time.sleep(LOOK / 5.0)
        self.seen.restore["gone_from_squeue"] = round(gone, 1)

    def above(self) -> dict[int, tuple[int, int]]:
        """Jobs that squeue shows above all that Slurm alone has given them lately, which carried something of ours."""
        look = self.look()
        found = {}
        for job in self.carried & look.alone.keys():
            own = max([look.alone[job], *(value for _, value in self.own[job])])
            if look.priority[job] > own + ROUNDING:
                found[job] = look.priority[job], own
        return found

    def summary(self, *arguments: Any) -> dict[str, Any]:
        """With how often a raised job shows what raises it."""
        seen = self.seen
        held = 1.0 - seen.undone / max(seen.raised, 1)
        wanted = HELD if self.minutes >= LONG else FEW_HELD
        if seen.undone > max(FEW, (1.0 - wanted) * seen.raised):
            seen.broken.append(f"squeue shows what raises a job in {held:.1%} of {seen.raised} readings")
        return {**super().summary(*arguments), "held": round(held, 4)}


if __name__ == "__main__":
    sys.exit(lending.main(Site))
