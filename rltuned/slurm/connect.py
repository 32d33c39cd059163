"""Builds the adapter that the configuration names."""

from rltuned.core.config import SlurmSection
from rltuned.slurm.cli import CliReader
from rltuned.slurm.port import SlurmReader, SlurmWriter
from rltuned.slurm.process import Runner
from rltuned.slurm.writer import ScontrolWriter


def runner(section: SlurmSection) -> Runner:
    """What runs the commands of the registry, as configured."""
    return Runner(section.bin_dir, section.conf, section.timeout)


def open_reader(section: SlurmSection, user: int | None = None) -> SlurmReader:
    """The reader, the same for all backends. `user`: whose privilege its facts tell; None: this process's."""
    if section.backend == "pyslurm":
        from rltuned.slurm.pyslurm import load_module  # noqa: PLC0415 - optional dependency

        load_module()  # the writer needs it
    return CliReader(runner(section), user)


def open_writer(section: SlurmSection) -> SlurmWriter:
    """The writer of the configured backend; raises as `open_reader`. A dry run never calls this."""
    if section.backend == "pyslurm":
        from rltuned.slurm.pyslurm import PyslurmWriter  # noqa: PLC0415 - optional dependency

        return PyslurmWriter(runner(section))
    return ScontrolWriter(runner(section))
