"""The sources of telemetry, one module a kind, all on the interface of `base`. `workers.collect` runs them."""
