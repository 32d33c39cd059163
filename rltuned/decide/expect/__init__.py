"""How long jobs run: what is expected of each before it has run, from the jobs that have ended (docs/estimates.md).

What must stay: bounded memory, that a job is predicted from jobs that ended before only, and the same prediction in the
daemon, in evaluation and in training.
"""
