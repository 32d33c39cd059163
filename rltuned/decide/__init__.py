"""From a snapshot to a plan: which pending job goes where in the queue, and what has to be written for that.

`plan()` is the one function that the daemon, the dry run, ``explain`` and the simulator call; it is pure: the time is
the snapshot's, randomness there is none, and the same values give the same plan. Inside, in this order:

`scope`    whose jobs may be touched at all, and the reason for each one that may not
`classes`  which jobs exchange priorities with each other
`ranks`    the policy's order, mixed with Slurm's (authority), then bent by the guards
`targets`  the class's own priorities handed out in that order, and the least number of changes that gets there
`outside`  what that may not cost the jobs outside of the class: moves taken back, writes put in order
`rollout`  what is asked of a rollout search, which moves one job of the policy's order; `predictions`: what it expects of run times
`plan`     puts it together with the observation and the placement
`explain`  a typed answer to "why is this job at this rank?"

What may be changed freely: the inside of each step. What must stay: a class takes no place from a job outside of it, at
no moment of the writing; a vetoed job is never in a change, an old job is never moved back. No clock, no process, no Slurm, no TensorFlow in here.
"""

from rltuned.decide.explain import Explanation, Verdict, explain
from rltuned.decide.plan import Plan, plan
from rltuned.decide.record import record
from rltuned.decide.scope import Veto

__all__ = ["Explanation", "Plan", "Verdict", "Veto", "explain", "plan", "record"]
