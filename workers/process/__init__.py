"""What every process has: logs, errors, files that it follows, its record on the bus."""
