"""Allocations: what the pods of a node request, as kube-scheduler counts it."""
