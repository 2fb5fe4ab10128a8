"""Helpers for tests of sources: requests of a Prometheus sender, and a simulated Prometheus server."""
