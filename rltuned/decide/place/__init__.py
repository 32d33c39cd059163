"""Which jobs at the front of the queue start where now, and whether packing or spreading pays (decision 0020).

`problem.build` (snapshot and ranking → `PlacementProblem`), then `placing.place`: `ways` groups equal requests and
equal nodes and offers each job class a handful of ways; `integer_program` states the program over them; `solve`
hands it to GLPK within a time limit; `placing` names the nodes again, and says which jobs Slurm is told to isolate.

The result is the same every time unless the time limit strikes, and the outcome says when it did. What must stay: the
proof of every placement finds nothing wrong (tests/unit/place/proof.py), never worse than greedy, never past the limit,
and the same program in CVXPY agrees (specification.py).
"""
