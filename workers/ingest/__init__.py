"""Ingestion of samples: sources, `collect`, the machine's own samples, and `materialize`, which writes NODES."""
