"""Published traces in their own formats: Philly, Helios, Alibaba PAI, and the Standard Workload Format.

The product reads its own CSV and ``sacct``; `python -m studies.traces FILE OUT.csv` converts the others.
"""

from studies.traces.read import FORMS, read

__all__ = ["FORMS", "read"]
