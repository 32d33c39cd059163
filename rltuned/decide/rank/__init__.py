"""Who ranks the pending jobs: plain rules, and the actor that was learned. `multifactor` is Slurm's own priority.

What must stay: higher score first; scores do not depend on the order of the rows, are finite, and agree with
`rltuned.lab.train.ppo` to 1e-5. No TensorFlow, no disk: model files are `records.model_files`.
"""

from rltuned.decide.rank.actor import Actor
from rltuned.decide.rank.heuristics import RULES, Rule, by_name
from rltuned.decide.rank.protocol import Policy, Queue

__all__ = ["RULES", "Actor", "Policy", "Queue", "Rule", "by_name"]
