"""The process and its loop.

`service` is the process: when cycles begin, signals, systemd. `loop` runs a cycle, which is a list of `steps`; `parts`
puts together what they work with, and `state` says whether they may write (`health.runtime.may_write`). Beside them:
the book of loans (`lending`), what carries a plan out (`execution`), what backfill puts back (`undoing`), which policy
ranks (`policy`; `auto_policy`, where a verdict says so), and what is told of a cycle (`report`).

What must stay: a step acts on what the steps before it have read in this very cycle, and on nothing older.
"""
