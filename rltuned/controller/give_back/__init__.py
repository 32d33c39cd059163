"""The way back: everything by which values of rltuned's are taken off the queue.

- `batches`: gives a set of jobs back and proves it. The two below call it.
- `by_command`: ``rltuned restore``, of an admin, of the unit's stop, or of the dead-man timer.
- `by_daemon`: what a living daemon gives back, and when it tries again: jobs that leave the plan, and all where no plan
  can be carried out.
- `left_alone`: jobs that an admin wants left alone, told to a living daemon; `pause`: that it shall write nothing.
"""
