"""The worker that computes statistics over time."""
