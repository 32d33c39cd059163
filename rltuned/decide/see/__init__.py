"""What the policy sees: the paper's 17 features and two more of each pending job, and the 256×8 observation sampled
from them.

One way in: `observe(snapshot, rows, estimates)` gives an `Observation`. The daemon, dry run, explain and the simulator
call it. Training has a compiled twin (`simulate.episode_kernel`), and a test holds that both give the same numbers, so
the served policy sees what the trained one saw. The steps of `observe` are public for tests and `benchmarks`:

- `window`: which ≤ 256 of the eligible jobs are seen this cycle.
- `supply`: what each pool of nodes offers, now and later (`PoolStats`, computed once per snapshot).
- `features`: run time, wait and GPUs of each job (`Demand`), and the 15 numeric features, or some of them.
- `observation`: features → 8 columns, padding and mask. Who reads more than these asks for it.

docs/ranking.md says for an administrator what each column means; docs/decisions/0010 why the state has the columns it
has. Everything is vectorised: a loop over jobs does not belong here.

What may be changed freely: how a column is computed, as long as tests/unit/see still agrees with its loop-by-loop
reference. What must stay: names, order and ranges of `FEATURES`, `METADATA`, `STATE_COLUMNS` and `CRITIC_COLUMNS`
(model files refuse others), all values finite in [0, 1], and that permuting the jobs permutes the rows.

What must not be imported: a clock, a disk, a process, the rest of `decide`. Time is `snapshot.time`.
"""

from rltuned.decide.see.features import FEATURES, METADATA, RUN_TIME_HORIZON, Demand, demand, features, num_ways
from rltuned.decide.see.observation import CRITIC_COLUMNS, STATE_COLUMNS, Observation, observe, sample
from rltuned.decide.see.supply import PoolStats, expected_ends, pool_stats
from rltuned.decide.see.window import WINDOW, select_window

__all__ = [
    "CRITIC_COLUMNS",
    "FEATURES",
    "METADATA",
    "RUN_TIME_HORIZON",
    "STATE_COLUMNS",
    "WINDOW",
    "Demand",
    "Observation",
    "PoolStats",
    "demand",
    "expected_ends",
    "features",
    "num_ways",
    "observe",
    "pool_stats",
    "sample",
    "select_window",
]
