"""A cluster that behaves like Slurm, on a virtual clock (docs/simulator.md says point by point how).

`engine` is a workload on a cluster; `kernel`, `loop_kernel` and `backfill_kernel` are its compiled parts. `scenarios`
simulates a queue ahead, `episodes` plays a window for training. `workload` holds jobs as data, `shape` the clusters,
`forecast` when each waiting job of a real queue starts.

What must stay: the kernel agrees with the plain one of `tests/oracles`, job by job, and nothing here knows why a queue
is in its order.
"""
