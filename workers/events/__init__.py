"""The worker that publishes what happens as public events."""
