"""Policies, nodes, GPU cards and pods in: from the API server or a directory; the status of a policy out."""
