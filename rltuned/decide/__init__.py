"""From a snapshot to a plan: which pending jobs go ahead of others, who lends for that, and what has to be written.

`plan.plan` is the one function that the daemon, the dry run, ``explain`` and the simulator call; it is pure: the time
is the snapshot's, randomness there is none, and the same values give the same plan. Its steps (docs/lending-example.md
goes through them with six jobs): `scope`, `managed` and `loans`, the policy's scores, `raising`, `planned_changes`.
`decision` is the record of what was decided, and what the other views of it read.

What must stay: no job gets less than Slurm gives it; a job that has lent its part is passed by nobody else's; a vetoed
job is never raised. No clock, no process, no Slurm, no TensorFlow in here.
"""
