"""The daemon: everything that has a clock, a disk or a socket.

`loop`       one cycle at a fixed rate: read, reconcile, plan, apply, report; stages, reload, stop
`apply`      changes → outcomes: read, judge, journal, write, read back
`claims`     what rltuned may call its own on a job: pure values, used by the three around it
`reconcile`  the journal against the queue: gone jobs, unfinished writes, foreign changes
`restore`    the way back: everything undone and verified, with or without a living daemon
`giving_back`  of a living daemon: which jobs go back in this cycle; `returns`: when what failed is tried again
`journal`    write-ahead journal, two copies, checksummed
`lock`       one writer per cluster
`heartbeat`  the sign of life that the dead-man timer and `doctor` read
`primacy`    of several controllers' daemons, which one writes
`service`, `clock`  cycles at a fixed rate, whatever somebody does to the clocks
`endpoint`   the metrics by HTTP
`budget`, `breaker`  how much may be sent, and when to leave Slurm alone
`planning`   `decide.plan` with what `history` says of run times and `rollout_worker` finds by simulating
`start_times`  when jobs start: what is learnt for that, and the forecast; `start_answers`: ``rltuned when``
`once`       one decision without a daemon, for ``rltuned plan`` and ``rltuned explain``
`checks`     prerequisites of steering a cluster; shared with ``rltuned doctor``
`notify`, `metrics`, `logs`  what people and machines get to see
`decisions`  on disk: the last one, for ``rltuned explain``, and what every cycle saw and did, for ``rltuned report``

The safety argument stands on three rules. (1) Before the first write of a cycle, each intended value is on disk; so
whatever happens then, each value that can be on a job is known to be ours. (2) Whether a value is ours is judged by
reading the job, right before a write and before each undo; anything else is somebody's own and stands. (3) Each step
can be repeated: going on after a crash and restoring after a crash are the same code as going on and restoring.

What may be changed freely: metrics, log events, budgets. What must stay: the three rules, and that `restore`,
`journal`, `claims`, `lock`, `heartbeat`, `budget` and `clock` import no NumPy: the way out works when everything else
is broken. For that reason this page imports nothing. Commands are started by `rltuned.slurm` alone; the one process
that is started here is a worker of our own, in `rollout_worker`, and no cycle depends on it.
"""
