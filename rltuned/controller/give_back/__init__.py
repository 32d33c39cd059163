"""The way back: everything by which values of rltuned's are taken off the queue. `batches` undoes and proves it, for
``rltuned restore`` (`by_command`: an admin, the unit's stop, the dead-man timer) and for a living daemon (`by_daemon`).
What must stay: it needs no daemon, no model and no NumPy.
"""
