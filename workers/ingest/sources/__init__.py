"""The sources of telemetry, one module a kind, all on the interface of `base`. `workers.ingest.collect` runs them."""
