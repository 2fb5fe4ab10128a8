"""The worker that answers kube-scheduler by telemetry, and by extensions."""
