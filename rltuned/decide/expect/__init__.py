"""How long jobs run: what is expected of each before it has run, from the jobs that have ended (docs/estimates.md).

- `run_time_history`: learns from ended jobs, kind by kind, and predicts the jobs of a table; with a simulated history.
- `mixture`: the prediction, a mixture of what the user's, account's and site's last jobs took.
- `predictions`: values that the rest of rltuned reads: predicted run times, ended jobs, and how wrong predictions were.

What may be changed freely: what counts as alike, and the weights. What must stay: bounded memory, that a job is
predicted from jobs that ended before only, and the same prediction in the daemon, in evaluation and in training.

Must not be imported here: the simulator, a clock, a disk.
"""
