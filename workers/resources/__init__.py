"""The worker that adds the resource `telemetry/scheduling` to nodes."""
