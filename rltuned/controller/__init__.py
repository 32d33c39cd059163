"""What runs on slurmctld's host: everything that has a clock, a disk or a socket.

Each room knows those below it:

- `shown`: what people are shown beside the daemon: doctor, status, plan, explain.
- `cycle`: the process and its loop: read, reconcile, plan, apply, report.
- `give_back`: the way back, with or without a living daemon.
- `write`: from a plan to Slurm: the journal, what is ours on a job, one batch of changes. `learnt`: what is kept of
  jobs that have ended: run times, start times. `users`: what users see of their own jobs.
- `health`: what must hold so that it may write: lock, heartbeat, slurmctld, prerequisites; what all parts share.
- `tell`: the log and the metrics.

The safety argument stands on three rules. (1) Before the first write of a cycle, each intended value is on disk, and
who lends for it; so whatever happens then, each value that can be on a job is known to be ours, and is lent for. (2)
Whether a value is ours is judged by reading the job, right before a write and before each undo; anything else is
somebody's own and stands. (3) Each step can be repeated: going on after a crash and restoring after a crash are the
same code as going on and restoring.

What may be changed freely: metrics, log events, write budgets. What must stay: the three rules. Commands are started by
`rltuned.slurm` alone; the one process that is started here is a worker of our own, in `learnt.forecast_worker`, and no
cycle depends on it.
"""
