"""What the daemon shows: the log, the metrics and their endpoint; and the states that both name (`states`)."""
