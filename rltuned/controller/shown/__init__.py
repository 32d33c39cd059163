"""What people are shown beside the daemon, by its files and Slurm's answers.

- `checks`: all that ``rltuned doctor`` says. `status`: what files say, on one screen.
- `once`: ``rltuned plan``, ``explain`` and ``when``.

What must stay: nothing here writes.
"""
