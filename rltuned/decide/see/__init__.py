"""What the policy sees: the paper's 17 features and two more of each pending job, and the 256×8 observation sampled
from them. docs/ranking.md says what each column means, docs/decisions/0010 why the state has the columns it has.

One way in: `observation.observe`. Training has a compiled twin (`simulate.episode_kernel`), and a test holds that both
give the same numbers. Everything is vectorised: a loop over jobs does not belong here.

What must stay: names, order and ranges of `FEATURES`, `STATE_COLUMNS` and `CRITIC_COLUMNS` (model files
refuse others), all values finite in [0, 1], that permuting the jobs permutes the rows, and that each column agrees with
the loop-by-loop reference of tests/unit/see. Time is `snapshot.time`.
"""
