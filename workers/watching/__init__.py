"""Policies, nodes and pods in: from the API server or a directory; the status of a policy out."""
