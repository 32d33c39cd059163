"""rltuned makes an existing Slurm GPU cluster finish work sooner.

Once a minute the daemon reads the queue and the nodes, a pretrained actor ranks the pending jobs, a small integer
program decides where packing or spreading pays, and the outcome is handed to Slurm through ``scontrol``. Slurm stays in
charge. ``docs/architecture.md`` has the tour; each package says on its first page what lives there.
"""

from pathlib import Path

__version__ = "0.2.0"


def revision() -> str:
    """Git revision of the code, which model manifests and reports name; "unknown" outside a checkout."""
    head = Path(__file__).resolve().parents[1] / ".git"
    try:
        reference = (head / "HEAD").read_text(encoding="ascii").strip()
        if reference.startswith("ref: "):
            reference = (head / reference.removeprefix("ref: ")).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return "unknown"
    return reference
