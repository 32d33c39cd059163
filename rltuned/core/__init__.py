"""The values that everything else is about: jobs, nodes, partitions, a snapshot of all three, and changes to jobs.

Values only. Tables are frozen dataclasses of NumPy columns, because 10,000 pending jobs must be cheap; row i of each
column is job (or node) i. Units are fixed: seconds since the epoch or seconds for times and durations, MiB for memory
and disk, whole devices for GPUs and CPUs. NaN is an unknown time, infinity an unlimited duration.

What may be changed freely: how a column is stored, helper methods. What must stay: names, units, and that nothing here
knows a clock, a process, a file or Slurm's text formats (but for what people write, too: `notation`).
"""
