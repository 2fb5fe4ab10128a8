"""Outcomes: what becomes of pods on their nodes, for agents that learn."""
