"""What must hold so that the daemon may write, and what it is judged by.

- `lock`: one writer per cluster. `primacy`: whether the acting slurmctld is on this host.
- `slurmctld`: what is known of it: facts, health; `rpc_budget`: how much it is asked.
- `heartbeat`: the sign of life that the dead-man timer and ``rltuned doctor`` read; `liveness`: what they see of the
  loop.
- `prerequisites`: of steering a cluster. `checks`: all that ``rltuned doctor`` says. `status`: what files say, on one
  screen. `clock`: passed in everywhere.
"""
