"""Samples of a node's metrics: how they are merged, how long they are fresh, how many a node may have."""
