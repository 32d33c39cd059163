"""What is kept of jobs that have ended.

- `history`: what is known of run times, over restarts.
- `start_times`: when jobs start: what is learnt for that, and the forecast, which `forecast_worker` asks a process for.
"""
