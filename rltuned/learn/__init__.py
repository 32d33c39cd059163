"""How the actor is made: a warm start from hindsight, then reinforcement learning on the simulator (docs/training.md).

Our policy:

- `train`: from traces to a model file. `command`, `sweep`: what `rltuned train` asks for. `settings`: every number that
  decides.
- `curriculum`: which windows are learned from. `warm`: the warm start. `ppo`: the algorithm. `select`: which checkpoint
  is kept. `run_directory`: what a run leaves, and goes on from after a kill.
- `sampling`: what worker processes do. `cost`: the metrics as integrals over time. `advantages`: rewards, costs-to-go,
  the critic.
- `plackett_luce`: the distribution over orders. `ragged`: queues of different lengths in flat arrays.
- `network`: the actor in TensorFlow, the twin of `rltuned.policy.actor`. `pairwise`: supervised learning of an order.
- `imitate`: fit the actor to a rule on the generated queues of `queues`; the shipped model `base` is made so.
- `headroom`: what a better order could gain. `compare`: two models side by side.
- `environment`: Gymnasium, for algorithms of others; on `rltuned.simulate.Simulation`, step by step.

TensorFlow lives here and nowhere else, and is imported only when something is trained: `rltuned train --help` must not
wait for it. Observations are built by `rltuned.simulate.episodes`, the compiled twin of `rltuned.observe.observe`,
which serves in the daemon; tests hold the two equal.

What may be changed freely: distributions, losses, schedules, as long as the shipped model is made again and its
metrics hold. What must stay: a seed decides everything, and TensorFlow and NumPy agree to 1e-5.
"""

import os

# TensorFlow would tell the user of every GPU library that it does not find, and that a network of this size does not
# need.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
