"""What a cycle did, and who is told: the log, metrics, systemd, the decision log, and each user of the own jobs."""
