"""The command line. Each command gathers its inputs, calls what does the work, and prints the answer.

What may be changed freely: texts, options and their order. What a command does belongs to another package.

Imports that cost time or memory happen inside the commands: ``restore`` must work where NumPy is broken, ``--help``
must be instant. So the top of a file here imports click, the configuration and the errors, and nothing that imports
NumPy.
"""
