"""The yardstick: policies on the same jobs, against plain rules, with intervals (docs/evaluation.md).

A `case` is one window with all that its simulation needs, and `measure` tries contenders on cases, over processes.
`evaluation` does that with the policies of a command line, `gate` decides by it what a site should run, `tune` searches
a slurm.conf with it, and `live` looks at what really happened; `site` reads a site's own jobs and nodes.

What must stay: every policy sees the same jobs, limits and estimates; a seed decides everything; equal command lines
give equal bytes but for fields that are called `seconds`; the shape of the JSON. matplotlib only in `frontier_picture`.
"""
