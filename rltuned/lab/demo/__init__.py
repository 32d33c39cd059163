"""``rltuned demo``: the real daemon on a simulated cluster.

`simulated_slurm`, the simulator as `SlurmReader` and `SlurmWriter`, also serves the tests of the daemon.
"""
