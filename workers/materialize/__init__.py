"""The worker that stores the newest samples of each node."""
