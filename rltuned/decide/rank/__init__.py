"""Who ranks the pending jobs: plain rules, and the actor that was learned.

- `protocol`: what a `Policy` and a `Queue` are. `heuristics`: FIFO … F1, and `by_name`.
- `multifactor`: the arithmetic of Slurm's own priority, with fair share; what the simulator's Slurm gives every job.
- `actor`: NumPy inference of the learned ranking; no TensorFlow on the controller host. `objective`: what it is for.

What may be changed freely: a rule's code as long as it stays the right way round (higher score first), the speed of
the actor. What must stay: scores do not depend on the order of the rows, are finite, and agree with
`rltuned.lab.train.ppo` to 1e-5.

What must not be imported: TensorFlow, a clock, a process, a disk (model files are `records.model_files`), the rest of
`decide` but what is seen.
"""

from rltuned.decide.rank.actor import Actor
from rltuned.decide.rank.heuristics import RULES, Rule, by_name
from rltuned.decide.rank.protocol import Policy, Queue

__all__ = ["RULES", "Actor", "Policy", "Queue", "Rule", "by_name"]
