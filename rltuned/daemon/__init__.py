"""The daemon: everything that has a clock, a disk or a socket.

`service`    the process around the loop: when cycles begin, signals, systemd; `clock`: passed in everywhere
`loop`       one cycle: read, reconcile, plan, apply, report
`runtime`    what its parts share, and whether they may write; `liveness`: what the dead-man timer sees of the daemon
`slurmctld`  what is known of it: facts, how much it is asked (`rpc_budget`), where it runs (`primacy`)
`execution`  carries out a plan; `apply`: changes → outcomes: read, judge, journal, write, read back
`claims`     what rltuned may call its own on a job, field by field
`reconcile`  the journal against the queue: gone jobs, unfinished writes, foreign changes
`restore/`   the way back, with or without a living daemon
`journal`    write-ahead journal, two copies, checksummed; `lock`: one writer per cluster
`heartbeat`  the sign of life that the dead-man timer and `doctor` read
`lending`    the book of loans (`decide.loans`), kept over cycles and restarts
`planning`   `decide.plan` with what `history` says of run times
`policy_choice`  which policy ranks; `auto_policy`: what the gate's verdict stands for
`start_times`  when jobs start: what is learnt for that, and the forecast, which `forecast_worker` asks a process for
`once`       what ``rltuned plan``, ``explain`` and ``when`` show, without a daemon
`checks`     prerequisites of steering a cluster; shared with ``rltuned doctor``
`cycle_report`  what people and machines get to see: `logs`, `metrics` (`endpoint`: by HTTP), `user_records`
`decisions`  on disk: the last one, for ``rltuned explain``, and what every cycle saw and did, for ``rltuned report``

The safety argument stands on three rules. (1) Before the first write of a cycle, each intended value is on disk, and
who lends for it; so whatever happens then, each value that can be on a job is known to be ours, and is lent for. (2)
Whether a value is ours is judged by reading the job, right before a write and before each undo; anything else is
somebody's own and stands. (3) Each step can be repeated: going on after a crash and restoring after a crash are the
same code as going on and restoring.

What may be changed freely: metrics, log events, write budgets. What must stay: the three rules. Commands are started by
`rltuned.slurm` alone; the one process that is started here is a worker of our own, in `forecast_worker`, and no cycle
depends on it.
"""
