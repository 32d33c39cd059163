"""How long work is done and watched: a pool of worker processes, and the progress that it reports.

- `pool`: `WorkerPool`, the only pool of the project. Training and evaluation use it.
- `progress`: `Progress`, what long work calls after each step; `silent`, and `progress_bar` for a terminal.

It knows nothing of jobs, clusters or models, and must import nothing of rltuned but its errors. Importing it is cheap:
Rich is loaded with the first bar.

The daemon's one worker process is another thing (`controller.learnt`): it lives for months, and is killed when it is
too slow.
"""
