"""What people and machines get to see.

- `cycle_report`: of one cycle: a sentence in the log, metrics, a decision record.
- `logs`, `metrics` (`endpoint`: by HTTP), `user_records`: what each user may know of the own jobs.
"""
