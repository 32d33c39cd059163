"""The process and its loop.

- `service`: the process around the loop: when cycles begin, signals, systemd.
- `loop`: one cycle. `runtime`: what its parts share, and whether they may write.
- `planning`: `decide.plan` with what is known of run times. `lending`: the book of loans, kept over restarts.
- `policy_choice`: which policy ranks; `auto_policy`: what the gate's verdict stands for.
- `once`: what ``rltuned plan``, ``explain`` and ``when`` show, without a daemon.
"""
