"""A cluster that behaves like Slurm, on a virtual clock (docs/simulator.md says point by point how).

- `values`: settings, estimates, results. `requests`: what each job of a workload asks of this cluster.
- `kernel`: the compiled state, and which nodes a job gets. `backfill_kernel`: Slurm's own backfill. `loop_kernel`: the
  event loop and EASY.
- `engine`: `Simulation`, a workload on a cluster, with names. `rankers`: how a rule or the served plan orders the queue
  at each refresh. `priorities`: what Slurm's multifactor makes of it.
- `episodes`: windows that a network schedules many times, what training samples from; `episode_kernel` is its compiled
  part.
- `initial_state`: a workload, or a snapshot, as a state of the simulator. `scenarios`: a queue simulated ahead, with
  sampled run times.
- `workload`: jobs as data, from traces and generators. `shape`: the cluster that they run on. `run_times`: what would
  be predicted of them.
- `forecast`: when each waiting job of a real queue starts.

The kernel agrees with the plain one of `tests/oracles`, job by job. Nothing here knows why a queue is in its order.
"""
