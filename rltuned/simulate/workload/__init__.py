"""Jobs as data: traces read from files, generated workloads, and what is known about a job before it has run.

`read` turns a trace into a `Workload`: one row per job, NumPy columns, the units of `rltuned.core`. `lines` gives the
numbered lines of a packed or plain file and its hash, `batch` converts whole columns of them and notes what is wrong
with which row, `readers` says which column means what. `studies.traces` converts published formats by the same parts.

What must stay: the columns and units of `Workload`, that a file is read once and in bounded memory, that every bad line
has its number and reason, and that no job name or other free text of users is kept. Files are only those that the user
names.
"""
