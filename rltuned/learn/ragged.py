"""Queues of different lengths in flat arrays: the R rows of S queues, one queue behind the other.

`count`: (S,) rows of each queue. `ptr`: (S+1,) where each begins; the last entry is R.
"""

import numpy as np

from rltuned.cluster.tables import Ints, Rows, Singles


def begins(count: Ints) -> Ints:
    """(S+1,) `ptr` of these counts."""
    return np.concatenate(([0], np.cumsum(count))).astype(np.int64)


def flat_rows(ptr: Ints, queues: Rows) -> Ints:
    """Rows of these queues, one behind the other."""
    count = (ptr[1:] - ptr[:-1])[queues]
    starts = np.repeat(ptr[:-1][queues] - begins(count)[:-1], count)
    return np.asarray(starts + np.arange(int(count.sum())), dtype=np.int64)


def contexts(state: Singles, count: Ints) -> Singles:
    """(S, inputs) mean of the rows of each queue: the pooled context that a network may see. No queue is empty."""
    return (np.add.reduceat(state, begins(count)[:-1], axis=0) / count[:, None]).astype(np.float32)
