"""What users get to see of their own jobs, and what these say that they could do (`registrations`). Loaded where the
site publishes that, and nowhere else.
"""
