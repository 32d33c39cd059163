"""From a plan to Slurm.

- `execution`: carries out a plan. `apply`: changes → outcomes: read, judge, journal, write, read back.
- `claims`: what rltuned may call its own on a job, field by field.
- `journal`: write-ahead journal, two copies, checksummed.
- `reconcile`: the journal against the queue: gone jobs, unfinished writes, foreign changes.
"""
