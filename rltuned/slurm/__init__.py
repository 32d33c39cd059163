"""The only door to Slurm.

What lives here: `port`, the protocols that the rest of rltuned knows (`SlurmReader`, `SlurmWriter`, `ClusterFacts`);
`commands`, the registry of every command line that rltuned can issue; `process`, which runs one of them; `separated`,
`notation`, `listings` and `controller`, which understand what the commands print; `squeue`, the one reading of the
queue, of which `snapshot` makes tables and `status` the few facts around a write; `sprio`, `sacct` and `facts`; `cli`
and `writer`, the adapters that every release works with; `pyslurm`, the optional adapter for Slurm 25.11; `connect`,
which builds the adapter that the configuration names.

What may be changed freely: how an answer is read, as long as the values of `rltuned.core` come out the same for
every release. What must stay:

- A command line that is not in `commands.REGISTRY` is not issued; nothing goes through a shell.
- No field that users write freely (job name, comment, paths, scripts) is ever asked for. What administrators write
  (node reasons and comments, which scontrol always prints) is cut off before anything is looked at.
- An answer that is late, cut short, or not understood is an error, never an empty queue.
- Every value is checked before it becomes part of an update; no text can become a second command.
- A reader cannot write: a dry run is given a reader and nothing else.

What must not be imported: the daemon, the simulator, TensorFlow. Nothing else in rltuned may import `subprocess`.
"""
