"""In a user's job, on a compute node: one file, the standard library only. It imports nothing of rltuned."""
