"""Everything that TAS writes to nodes: labels and their removal, wakes of waiting pods, `telemetry/scheduling`."""
