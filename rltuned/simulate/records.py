"""The record of a job in the simulator's state, for those outside who add jobs to a state (`rltuned.forecast`)."""

from rltuned.simulate.kernel import COMPLETED, DIMENSIONS, PER_NODE, SHARED, WHOLE, Array

__all__ = ["COMPLETED", "DIMENSIONS", "PER_NODE", "SHARED", "WHOLE", "Array"]
