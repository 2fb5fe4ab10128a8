"""Verdicts, and what they change on nodes: `evaluate`, `labels`, `resources`."""
