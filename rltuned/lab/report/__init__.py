"""``rltuned report``: what rltuned did, or would have done, in a period, and what that is worth (docs/good-for-us.md).

`period`     what the decision log says: cycles, faults, raised jobs, loans, changes
`replay`     the period's own jobs in the simulator, under Slurm's order and under rltuned, beside what really happened
`gains`      whose gain and whose loss that is, and how well run times were predicted
`advice`     go, no go, or undecided, with the reasons
`build`      all of it as one JSON value
`report_tables`, `page`, `charts`  that value for people: tables, one HTML page, its drawings

What may be changed freely: texts, drawings, the order of sections. What must stay: `period` and `report_tables` need
nothing that the controller host lacks; only `replay` and `gains` need the simulator, only `charts` matplotlib. The page
loads nothing from elsewhere, and every text of the cluster in it is escaped.
"""
