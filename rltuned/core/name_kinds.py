"""What a job is called, as a number that tells no name. What differs by digits, separators and case is of one kind.

`train_lr0.01_s3` and `train_lr0.02_s7`, submitted from directories that likewise differ by digits only, are runs of the
same program on other parameters. Pure.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

NAME_BYTES: Final = 254
"""Of a name; slurmdbd keeps 255, and whether one of 255 was cut cannot be told."""
DIRECTORY_BYTES: Final = 4096  # PATH_MAX
LETTERS: Final = 64  # of a name, or of a part of a directory, that count
PARTS: Final = 2
"""Parts of a directory that count: the last ones with a letter in them. The last alone is often `run3` or `src`; those
further up are whose it is, and a copy of a project elsewhere is the same project."""

NameKind = Callable[[str, str, str], int]
"""The kind of a name by user, name and work directory; 0: none."""

_NUMBER = re.compile(r"\d[\d.]*(?:e[+-]?\d+)?")  # in small letters


@dataclass(frozen=True, slots=True)
class NameKinds:
    """A `NameKind`, by a keyed hash (BLAKE2b): who does not have the key cannot try names."""

    key: bytes = field(repr=False)  # at most 64 bytes

    def __call__(self, user: str, name: str, directory: str) -> int:
        """63 bits, as the integers of NumPy and of a state file have a sign. The same name of two users is of two
        kinds: else who may read the hashes could submit jobs of any name, and see who else has such.
        """
        if (text := normalised(name, directory)) is None:
            return 0
        digest = blake2b(f"{user}\0{text}".encode("utf-8", "surrogatepass"), key=self.key, digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1 or 1


def normalised(name: str, directory: str) -> str | None:
    """What is left of a name and of a directory without digits, separators and case; None: nothing, or one of them is
    not to be understood (too long, not UTF-8, with a control character).
    """
    for text, most in ((name, NAME_BYTES), (directory, DIRECTORY_BYTES)):
        # What is not UTF-8 was read as U+FFFD, or as half of a pair, which is not printable.
        if not text.isprintable() or "\ufffd" in text or len(text.encode()) > most:
            return None
    parts = [letters for part in directory.split("/") if (letters := _letters(part))]
    found = "/".join((_letters(name), *parts[-PARTS:]))
    return found if found.strip("/") else None


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, _NUMBER.sub("", text.casefold())))[:LETTERS]
