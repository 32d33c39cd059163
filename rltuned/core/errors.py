"""The errors that rltuned raises on purpose.

They form a small hierarchy so that each layer can catch what it can act on: the loop survives `SlurmError`, the command
line turns any `RltunedError` into one line and its exit code. An error names the file, line or job, the cause, and,
where one exists, the remedy. Anything else that escapes is a defect.
"""

import enum
from typing import Self


class ExitCode(enum.IntEnum):
    """What a command ends with, and what it means: docs/exit-codes.md and the man page are made of it."""

    def __new__(cls, value: int, meaning: str) -> Self:
        """The meaning is the member's docstring."""
        code = int.__new__(cls, value)
        code._value_, code.__doc__ = value, meaning
        return code

    DONE = 0, "done; for `doctor` and `status`: no error found"
    OTHER = 1, "something without a code of its own; the message says what"
    USAGE = 2, "wrong usage, or a path for a result that cannot be written: `rltuned COMMAND --help`"
    CONFIG = 3, "configuration wrong; the message names source, key and line: `rltuned config check`"
    MODEL = 4, "model refused: `rltuned model verify NAME`"
    SLURM = 5, "Slurm did not answer, or not understandably: `rltuned doctor`"
    DENIED = 6, "Slurm refused for lack of privilege: make the user an operator"
    PREREQUISITE = 7, "the cluster is not configured for steering: `rltuned doctor` names the remedy"
    JOURNAL = 8, "journal unreadable or unwritable; of `restore JOBID`: the request to leave it alone is not on disk"
    LOCKED = 9, "another rltuned holds the lock (of the model store, too)"
    FINDINGS = (
        10,
        "`doctor` or `status` found an error; `restore`, or the undo of `demo`, left something changed: each is named",
    )
    WORKLOAD = 11, "a trace cannot be read; `--skip-bad` counts such lines and goes on"
    SHAPE = 12, "the description of a cluster (`--cluster`) is wrong: docs/evaluation.md has the grammar"
    EVALUATION = 13, "an evaluation or a training cannot be made as asked; the message names the remedy"
    UNPROVEN = 14, "`gate`, `learn`: nothing certainly beats Slurm's order, which stays; `tune`: the site's slurm.conf"
    STATE = 15, "this user cannot use the state directory, or it cannot be locked; the message names the remedy"
    ABSENT = 16, "`explain`, `when`: the job does not wait for its turn, or is not yours: `sacct -j JOBID`"
    STOPPED = 17, "`status`: no daemon runs, and no error was found"
    INTERRUPTED = 130, "interrupted"


class RltunedError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line ends with (docs/exit-codes.md)."""

    exit_code = ExitCode.OTHER


class MissingError(RltunedError):
    """An optional package is not installed; the message has the command that installs it."""


class ConfigError(RltunedError):
    """A configuration file, environment variable or flag is wrong; the message names the key and the line."""

    exit_code = ExitCode.CONFIG


class ModelError(RltunedError):
    """A model file was refused: unknown format, wrong features, non-finite weights, failed golden vector, symlink."""

    exit_code = ExitCode.MODEL


class SlurmError(RltunedError):
    """Slurm could not be read or written; the queue is left to Slurm until it can."""

    exit_code = ExitCode.SLURM


class SlurmUnavailableError(SlurmError):
    """slurmctld did not answer: down, unreachable, or slower than the command's time-out."""


class SlurmParseError(SlurmError):
    """An answer of Slurm could not be understood; the message names the command, the line and the field."""


class AnswerTooLongError(SlurmParseError):
    """An answer of Slurm is longer than is read of it."""


class SlurmDeniedError(SlurmError):
    """Slurm refused for lack of privilege."""

    exit_code = ExitCode.DENIED


class PrerequisiteError(RltunedError):
    """The cluster is not configured so that rltuned can steer it; `rltuned doctor` names cause and remedy."""

    exit_code = ExitCode.PREREQUISITE


class JournalError(RltunedError):
    """The journal cannot be read or written, so nothing may be changed."""

    exit_code = ExitCode.JOURNAL


class LockedError(RltunedError):
    """Another rltuned already steers this cluster; the message says which process."""

    exit_code = ExitCode.LOCKED


class PlacementError(RltunedError):
    """A placement problem was stated wrongly (shapes, negative capacity); never raised for infeasible ones."""


class WorkloadError(RltunedError):
    """A trace cannot be read; the message names FILE:LINE and the reason."""

    exit_code = ExitCode.WORKLOAD


class ShapeError(RltunedError):
    """The description of a cluster (`--cluster`) is wrong; the message names the place and the reason."""

    exit_code = ExitCode.SHAPE


class EvaluationError(RltunedError):
    """An evaluation cannot be made as asked: window longer than the trace, policy without its model, other command
    resumed.
    """

    exit_code = ExitCode.EVALUATION


class StateError(RltunedError):
    """The state directory cannot be used by this user; the message names the path, its owner and the remedy."""

    exit_code = ExitCode.STATE
