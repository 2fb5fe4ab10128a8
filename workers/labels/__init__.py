"""The worker that writes desired labels to nodes, with its brake."""
