"""The worker that stores the policies, nodes and pods of a cluster."""
