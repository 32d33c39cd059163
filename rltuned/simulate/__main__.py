"""``python -m rltuned.simulate``: compile all kernels now. Numba keeps the code, so nobody waits for it later."""

from rltuned.simulate.episodes import compile_episodes
from rltuned.simulate.search import compile_rollouts

if __name__ == "__main__":
    compile_rollouts()
    compile_episodes()
