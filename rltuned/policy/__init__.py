"""policy (page to be written by its owner)."""
