"""What a controller keeps on disk for others to read, and how it is read. What may be changed freely: how a file is
read. What must stay: the formats that docs/state-files.md names, and that a file is there whole or not at all.
"""
