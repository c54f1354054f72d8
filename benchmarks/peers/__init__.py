"""Programs that do the same by other means, each run as a process."""
