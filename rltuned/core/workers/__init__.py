"""How long work is done and watched: `pool`, the only pool of worker processes, and `progress`, what long work reports.

It knows nothing of jobs, clusters or models. Importing it is cheap: Rich is loaded with the first bar. The daemon's one
worker process is another thing (`controller.learnt`): it lives for months, and is killed when it is too slow.
"""
