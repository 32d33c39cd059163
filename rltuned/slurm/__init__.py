"""The only door to Slurm: `port` is what the rest of rltuned may ask, `commands` every command line there is.

How an answer is read may be changed freely, as long as the values of `rltuned.core` come out the same for every
release. What must stay:

- A command line that is not in `commands.REGISTRY` is not issued; nothing goes through a shell.
- No field that users write freely (job name, comment, paths, scripts) is ever asked for, but where the site asks for
  names: `job_names` reads name and work directory in commands of their own, and no text leaves it. What administrators
  write (node reasons and comments, which scontrol always prints) is cut off before anything is looked at.
- An answer that is late (`SlurmUnavailableError`), cut short or not understood (`SlurmParseError`) is an error, never
  an empty queue.
- Every value is checked before it becomes part of an update; no text can become a second command.
- A reader cannot write: a dry run is given a reader and nothing else.
"""
