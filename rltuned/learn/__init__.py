"""How the actor is made: a warm start from hindsight, then reinforcement learning on the simulator (docs/training.md).

- `train`: from traces to a model file. `command`, `sweep`: what `rltuned train` asks for. `settings`: every number that decides.
- `curriculum`: which windows are learned from. `warm`: the warm start. `ppo`: the algorithm, one file. `select`: which checkpoint
  is kept. `run_directory`: what a run leaves, and goes on from after a kill.
- `rollouts`: what worker processes do, advantages among it; no TensorFlow. `cost`: the metrics as integrals over time.
- `environment`: Gymnasium, for algorithms of others; on `exact`, the slow twin of `rltuned.simulate.episodes`.
- `queues`: generated queue states. `network`: the actor in TensorFlow, the twin of `rltuned.policy.actor`.
- `imitate`: fit the actor to a rule, measure how far they agree on unseen states, write the model files.
- `peers`: the published peers of a comparison, a package of its own.

TensorFlow lives here and nowhere else, and is imported only when something is trained: `rltuned train --help` must not
wait for it. Observations are built by `rltuned.observe.observe`, the same as in the daemon.

What may be changed freely: distributions, losses, schedules, as long as the shipped model is made again and its
metrics hold. What must stay: a seed decides everything, and TensorFlow and NumPy agree to 1e-5.
"""

import os

# TensorFlow would tell the user of every GPU library that it does not find, and that a network of this size does not need.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
