"""The published peers RLScheduler and SchedInspector, trained on our simulator by their authors' own algorithm
(docs/peers.md).

- `settings`: every number that decides, by the papers' public code. `train`: from a trace to a model file.
- `episodes`: a window of a trace, simulated under a peer that explores, with the decisions that it made; no TensorFlow.
- `ppo`: their PPO, in TensorFlow.

They are here to be compared with. Nothing of our own training (`rltuned.learn`) depends on this package; it takes from
there the network, the advantages and a draw from a softmax. What must stay: their algorithm and their numbers.
"""
