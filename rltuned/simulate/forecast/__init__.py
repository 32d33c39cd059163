"""When each pending job starts: the queue simulated forward under the order in force (docs/start-times.md).

- `start_forecast`: what is asked of a forecast, what it says of each job, and how it is calibrated.
- `arrivals`: who has come lately, and who may come.
- `start_simulation`: the simulation, in scenarios of run times and arrivals. It alone needs Numba.
- `start_offer`: what a user is told, and which other request would start sooner.

What may be changed freely: how many scenarios, and what arrivals are sampled from. What must stay: the same answer for
the same request, and bounded time. The clock and the disk are the daemon's (`rltuned.controller.learnt.start_times`).

Must not be imported here: a clock, a disk, a process, the daemon.
"""
