"""The worker that takes events to where people look."""
