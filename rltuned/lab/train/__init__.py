"""How the actor is made: reinforcement learning on the simulator, from smallest area first on (docs/learning.md).

TensorFlow lives here and nowhere else, and is imported only when something is trained: `rltuned train --help` must not
wait for it. Observations are built by `rltuned.simulate.episodes`, the compiled twin of
`rltuned.decide.see.observation.observe`, which serves in the daemon; tests hold the two equal.

What may be changed freely: distributions, losses, schedules, as long as the shipped model is made again and its
metrics hold. What must stay: a seed decides everything, and TensorFlow and NumPy agree to 1e-5.
"""

import os

# TensorFlow would tell the user of every GPU library that it does not find, and that a network of this size does not
# need.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
