"""The worker that gives GPU cards to pods."""
