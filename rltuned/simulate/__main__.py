"""``python -m rltuned.simulate``: compile all kernels now. Numba keeps the code, so nobody waits for it later."""

from rltuned.simulate.episodes import compile_episodes
from rltuned.simulate.scenarios import compile_scenarios

if __name__ == "__main__":
    compile_scenarios()
    compile_episodes()
