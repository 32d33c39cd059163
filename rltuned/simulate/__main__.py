"""``python -m rltuned.simulate``: compile the kernel now, so that nobody waits for it later (Numba keeps what it compiled)."""

from rltuned.simulate.episodes import compile_episodes
from rltuned.simulate.search import compile_rollouts

if __name__ == "__main__":
    compile_rollouts()
    compile_episodes()
