"""What a controller keeps on disk for others to read, and how it is read.

- `decisions`: the last decision, and the log of what every cycle saw and did, for ``rltuned explain`` and ``report``.
- `model_files`: models, read with every check and written. `store`: versions of a model, and which one is in force.
- `gate_verdict`: which policy the site's own jobs say it should run.

What may be changed freely: how a file is read. What must stay: the formats that docs/state-files.md names, and that a
file is there whole or not at all.
"""
