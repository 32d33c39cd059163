"""From a plan to Slurm. What must stay: a value is in the journal on disk before Slurm hears of it, a write acts on a
reading that was made for it, and what somebody else has set stands (`claims`).
"""
