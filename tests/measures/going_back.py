"""How often `lab.evaluate.live` gives a version up, in simulation: a good one, and one that is the wrong way round.

    PYTHONPATH=.:tests python tests/measures/going_back.py FIRST_SEED LAST_SEED

Reality is four weeks on a simulated cluster (tests/unit/evaluate/test_live.py). After two weeks the order stays SAF, or
becomes the largest job first. There is a look after each of 14 days.
"""

import sys

import numpy as np
from unit.evaluate import test_live as world

from rltuned.lab.evaluate import live
from rltuned.lab.evaluate.evaluation import ready
from rltuned.lab.evaluate.policies import contender
from rltuned.lab.evaluate.windows import Window
from rltuned.simulate.engine import Simulation

SINCE = 14 * world.DAY


def yardstick(jobs):
    """Waits of all jobs in one simulation under the yardstick."""
    (case,) = ready(world.ASKED, jobs, world.SHAPE, "", (Window(0, 0, len(jobs)),)).cases
    settings = contender(live.YARDSTICK, world.ASKED).settings
    simulation = Simulation(case.shape, case.submitted, case.own_estimates(), settings, None, case.asked)
    simulation.run(world.rule(live.YARDSTICK))
    return simulation.result().start - jobs.submit_time


def main(first, last):
    """One line for each seed and kind: the day on which the version is given up, and D after 14 days."""
    for seed in range(first, last + 1):
        jobs = world.four_weeks(seed)
        at, simulated = jobs.submit_time, yardstick(jobs)
        for kind, after in (("good", world.rule("saf")), ("bad", world.WrongWayRound())):
            real, day, found = world.lived(jobs, world.rule("saf"), after, SINCE).wait_time, None, live.UNKNOWN
            for look in range(1, 15):
                middle, end = np.searchsorted(at, (SINCE, SINCE + look * world.DAY))
                found = live.compare(real[:end], simulated[:end], jobs.user.codes[:end], int(middle), 7)
                day = look if day is None and found.worse else day
            sys.stdout.write(f"{seed} {kind}: given up on day {day}, D {np.round(found.ratio, 2)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
