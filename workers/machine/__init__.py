"""The worker that publishes the telemetry of its machine."""
