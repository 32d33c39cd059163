"""Jobs as data: traces read from files, generated workloads, and what is known about a job before it has run.

`read` turns a trace into a `Workload`: one row per job, NumPy columns, the units of `rltuned.core`. It knows this
project's CSV columns and ``sacct -P`` (docs/evaluation.md); `studies.traces` converts published formats. `describe` is
the statistics of a workload, `read_shape` the cluster to run it on.

How reading works: `lines` gives numbered lines of a packed or plain file and its hash; `trace_tables` makes a
`batch.Batch` of each block of lines and says which column means what; the batch converts whole columns and notes what
is wrong with which row; the `Collector` raises the first note as FILE:LINE or counts it, and builds the workload. So
there is one conversion, fast where all is well and exact about the line where it is not.

What may be changed freely: how a file is read. What must stay:
the columns and units of `Workload`, that a file is read once and in bounded memory, that every bad line has its number
and reason, and that no job name or other free text of users is kept.

Must not be imported here: the rest of the simulator but `shape`, anything that runs Slurm, TensorFlow, a clock. Files
are only those that the user names.
"""
