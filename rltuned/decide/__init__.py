"""From a snapshot to a plan: which pending job goes where in the queue, and what has to be written for that.

`plan()` is the one function that the daemon, the dry run, ``explain`` and the simulator call; it is pure: the time is
the snapshot's, randomness there is none, and the same values give the same plan. Inside, in this order:

`scope`     whose jobs may be touched at all, and the reason for each one that may not
`classes`   which jobs exchange priorities with each other
`managed`   both together, with where these jobs stand: what all later steps read
`rollout`   what is asked of a rollout search, which moves one job of the policy's order; `predictions`: what it
            expects of run times
`ordering`  the order of each class: the policy's, bent by the guards;
            and the class's own priorities handed out in that order, with as few changes as possible (`ranks`)
`outside`   what that may not cost the jobs outside of the class: moves taken back, writes put in order
`planned_changes`  the placement of the front of the planned queue; what is written for all that, in which order; and
            what is given back instead

`plan` puts it together with the observation, which comes before the rollouts. `decision` is the record of what was
decided. `explain` reads it: a typed answer to "why is this job at this rank?" `entry` is a line of the decision log: a
whole cycle with its decision.

What may be changed freely: the inside of each step. What must stay: a class takes no place from a job outside of it, at
no moment of the writing; a vetoed job is never in a change, an old job is never moved back. No clock, no process, no
Slurm, no TensorFlow in here.
"""

from rltuned.decide.decision import DecisionRecord, record
from rltuned.decide.explain import Explanation, Verdict, explain
from rltuned.decide.plan import Plan, plan
from rltuned.decide.scope import Veto

__all__ = ["DecisionRecord", "Explanation", "Plan", "Verdict", "Veto", "explain", "plan", "record"]
