"""placement: which jobs at the front of the queue start where now, and whether packing or spreading pays.

The chain is `build` (snapshot and ranking → `PlacementProblem`), then `place`: `ways` groups equal requests and equal
nodes and offers each job class a handful of ways; `integer_program` states the integer program over them as matrices;
`solve` hands it to GLPK within a time limit; `placing` names the nodes again. `isolated` says which jobs Slurm is told
to isolate. Tests prove every placement against the problem (tests/unit/place/proof.py), and the model against the
same one in CVXPY (specification.py). Decision 0020 has the formulation.

Pure functions over values: no clock (the time limit is GLPK's own), no disk, no Slurm, no randomness. The result is
the same every time unless the time limit strikes, and the outcome says when it did. swiglpk is imported in `solve`
alone.

What may be changed freely: which ways are offered, the penalties in `ways`, GLPK's settings. What must stay: the proof
finds nothing wrong, never worse than greedy, never past the limit, and the CVXPY model agrees.
"""

from rltuned.decide.place.placing import isolated, place
from rltuned.decide.place.problem import Kind, Placement, PlacementProblem, SolveOutcome, Way, build

__all__ = [
    "Kind",
    "Placement",
    "PlacementProblem",
    "SolveOutcome",
    "Way",
    "build",
    "isolated",
    "place",
]
