"""``python -m rltuned``: the command line, where its script is not on the PATH."""

from rltuned.cli.main import main

main()
