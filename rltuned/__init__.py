"""rltuned makes an existing Slurm GPU cluster finish work sooner.

Once a minute the daemon reads the queue and the nodes, a pretrained actor ranks the pending jobs, a small integer
program decides where packing or spreading pays, and the outcome is handed to Slurm through ``scontrol``. Slurm stays in
charge. ``docs/architecture.md`` has the tour; each package says on its first page what lives there.
"""

__version__ = "0.1.0"
