"""What must hold so that the daemon may write, and what it is judged by.

- `runtime`, `clock`: what all parts share, and whether they may write (`may_write`).
- `lock`: one writer per cluster. `primacy`: whether the acting slurmctld is on this host.
- `slurmctld`: what is known of it: facts, health; `rpc_budget`: how much it is asked; `prerequisites`: of steering it.
- `heartbeat`: the sign of life that the dead-man timer and ``rltuned doctor`` read; `liveness`: what they see of the
  loop.
"""
