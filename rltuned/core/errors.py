"""The errors that rltuned raises on purpose.

They form a small hierarchy so that each layer can catch what it can act on: the loop survives `SlurmError`, the command
line turns any `RltunedError` into one line and its exit code. An error names the file, line or job, the cause, and,
where one exists, the remedy. Anything else that escapes is a defect.
"""


class RltunedError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line ends with (docs/exit-codes.md)."""

    exit_code = 1


class MissingError(RltunedError):
    """An optional package is not installed; the message has the command that installs it."""


class ConfigError(RltunedError):
    """A configuration file, environment variable or flag is wrong; the message names the key and the line."""

    exit_code = 3


class ModelError(RltunedError):
    """A model file was refused: unknown format, wrong features, non-finite weights, failed golden vector, symlink."""

    exit_code = 4


class SlurmError(RltunedError):
    """Slurm could not be read or written; the queue is left to Slurm until it can."""

    exit_code = 5


class SlurmUnavailableError(SlurmError):
    """slurmctld did not answer: down, unreachable, or slower than the command's time-out."""


class SlurmParseError(SlurmError):
    """An answer of Slurm could not be understood; the message names the command, the line and the field."""


class AnswerTooLongError(SlurmParseError):
    """An answer of Slurm is longer than is read of it."""


class SlurmDeniedError(SlurmError):
    """Slurm refused for lack of privilege."""

    exit_code = 6


class PrerequisiteError(RltunedError):
    """The cluster is not configured so that rltuned can steer it; `rltuned doctor` names cause and remedy."""

    exit_code = 7


class JournalError(RltunedError):
    """The journal cannot be read or written, so nothing may be changed."""

    exit_code = 8


class LockedError(RltunedError):
    """Another rltuned already steers this cluster; the message says which process."""

    exit_code = 9


class PlacementError(RltunedError):
    """A placement problem was stated wrongly (shapes, negative capacity); never raised for infeasible ones."""


class WorkloadError(RltunedError):
    """A trace cannot be read; the message names FILE:LINE and the reason."""

    exit_code = 11


class ShapeError(RltunedError):
    """The description of a cluster (`--cluster`) is wrong; the message names the place and the reason."""

    exit_code = 12


class EvaluationError(RltunedError):
    """An evaluation cannot be made as asked: window longer than the trace, policy without its model, other command
    resumed.
    """

    exit_code = 13


class StateError(RltunedError):
    """The state directory cannot be used by this user; the message names the path, its owner and the remedy."""

    exit_code = 15
