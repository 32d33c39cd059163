"""Laboratory, on any machine: what measures, trains and shows, and never runs in the daemon.

- `evaluate`: policies on the same jobs, with intervals; the gate; a site's slurm.conf tuned.
- `train`: how the actor is made. The only place of TensorFlow.
- `report`: what a period was worth. `demo`: the real daemon on a simulated cluster. `benchmarks`: how fast it is here.
"""
