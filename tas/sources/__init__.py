"""What sources of telemetry answer, decoded: bytes in, a `reading.Batch` out, and nothing that does I/O."""
