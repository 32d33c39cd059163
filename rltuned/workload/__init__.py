"""Jobs as data: traces read from files, generated workloads, and what is known about a job before it has run."""
