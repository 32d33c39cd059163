"""TensorFlow, loaded without what its libraries say before they can be told to be quiet.

Importing it and looking for devices writes lines about CUDA to the file of standard error itself, whatever
``TF_CPP_MIN_LOG_LEVEL`` says (absl's log is not set up yet). They would stand before each error of a training. Where
loading fails they are printed after all: then they may be the reason.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _quiet() -> Iterator[None]:
    """Standard error of the process, C++ included, is kept back; it is printed where an exception comes."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


with _quiet():
    import tensorflow as tf

    tf.config.list_physical_devices()

__all__ = ["tf"]
