"""From a snapshot to a plan: which pending jobs go ahead of others, who lends for that, and what has to be written.

`plan()` is the one function that the daemon, the dry run, ``explain`` and the simulator call; it is pure: the time is
the snapshot's, randomness there is none, and the same values give the same plan. It has five steps
(docs/lending-example.md goes through them with six jobs):

1. `scope`: who waits, may be raised and may be passed, and the reason for each that may not.
2. `managed`, `loans`: what each job keeps from others, and the book of what it has lent.
3. Whom the policy wants first: the observation and its scores.
4. `raising`: the rule. Who goes ahead, and who lends for it.
5. `planned_changes`: the placement of the front of the planned queue, and what is written: one value for each raised
   job, after what is given back.

`decision` is the record of what was decided. `explain` reads it: a typed answer to "why is this job at this place?"
`user_record` is what one user may know of it, `reasons` says Slurm's reasons in words, `entry` is a line of the
decision log: a whole cycle with its decision. `resizing` advises jobs that can resize themselves.

What may be changed freely: the inside of each step. What must stay: no job gets less than Slurm gives it; a job that
has lent its part is passed by nobody else's; a vetoed job is never raised. No clock, no process, no Slurm, no
TensorFlow in here.
"""
