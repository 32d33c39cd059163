"""The published peers RLScheduler and SchedInspector, trained on our simulator by their authors' own algorithm
(studies/README.md), to be compared with.

- `rlscheduler`, `schedinspector`: what they decide, as rankings. `net`: their network. `model`: their files.
- `__main__`: from a trace to a model file. `episodes`: a simulated window with the decisions of a peer that explores.
  `ppo`: their PPO, in TensorFlow.
- `measure`: a trained peer on the windows of a study.

What must stay: their algorithm and their numbers.
"""

from typing import Final

PEERS: Final = ("rlscheduler", "schedinspector")
