"""When each pending job starts: the queue simulated forward under the order in force (docs/start-times.md).

What must stay: the same answer for the same request, and bounded time. The clock and the disk are the daemon's
(`rltuned.controller.learnt.start_times`). `start_simulation` alone needs Numba.
"""
