"""``rltuned demo``: the real daemon on a simulated cluster.

- `demo_clusters`: two clusters with the same jobs and people, one with a daemon and one without, side by side.
- `demo_report`: what that was worth.
- `simulated_slurm`: the simulator as `SlurmReader` and `SlurmWriter`, also for tests of the daemon.
- `people`: what users and admins do there.
"""
