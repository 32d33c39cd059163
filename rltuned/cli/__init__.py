"""The command line. Each command gathers its inputs, calls what does the work, and prints the answer.

`main`           the program: `rltuned` without a command, the list of commands, errors and exit codes
`daemon`         on the controller host: run, restore, pause, resume, status, doctor, plan, explain, when
`configuration`  config: check, show, sample
`model`          model files: info, verify, list, use, rollback
`train`          train
`traces`         job traces: describe, generate
`report`         what a period was worth
`evaluate`       policies in the simulator, and the gate
`bench`, `demo`  speed on this machine, and the demonstration
`elastic`        a job that changes its number of nodes, by the file `rltuned.job.elastic`
`common`         what several commands share: options, the configuration, output
`show`           tables and sentences for people

What may be changed freely: texts, options and their order. What a command does belongs to another package.

Imports that cost time or memory happen inside the commands: ``restore`` must work where NumPy is broken, ``--help``
must be instant. So the top of a file here imports click, the configuration and the errors, and nothing that imports
NumPy.
"""
