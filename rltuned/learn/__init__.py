"""How the actor is made: supervised imitation of a plain rule, the warm start that reinforcement learning goes on from.

- `queues`: generated queue states. `network`: the actor in TensorFlow, the twin of `rltuned.policy.actor`.
- `imitate`: fit the actor to a rule, measure how far they agree on unseen states, write the model files.
- `progress`: a bar on a terminal, nothing elsewhere.

TensorFlow lives here and nowhere else, and is imported only when something is trained: `rltuned train --help` must not
wait for it. Observations are built by `rltuned.observe.observe`, the same as in the daemon.

What may be changed freely: distributions, losses, schedules, as long as the shipped model is made again and its
metrics hold. What must stay: a seed decides everything, and TensorFlow and NumPy agree to 1e-5.
"""
