"""The worker that writes taints and node conditions."""
