"""The yardstick: policies on the same jobs, against plain rules, with intervals (docs/evaluation.md).

- `evaluation_settings`: what is asked for, checked. `windows`: which jobs. `policies`: who ranks them, by name.
- `case`: one window with its estimates and its past, small enough to be sent to another process or another host.
- `measure`: one policy on one case. `window_metrics`, `bootstrap`: pure functions over arrays.
- `evaluation`: all windows and policies, over processes, and what an interrupted one has measured (`state`).
- `evaluation_report`: the result as JSON and as a table.
- `gate`: which policy a site should run, as a verdict for the daemon (docs/good-for-us.md), by the `frontier` of what
  is gained and whom that harms (`harm`); `site`: its jobs and nodes.

What may be changed freely: how work is cut and spread, tables. What must stay: every policy sees the same
jobs, limits and estimates; a seed decides everything; equal command lines give equal bytes but for fields that are
called `seconds`; the shape of the JSON.

What must not be imported: TensorFlow, `daemon`, `learn`; matplotlib but in `frontier_picture`.
"""
