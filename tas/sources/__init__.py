"""The answers of telemetry sources, decoded: bytes in, a `result.SourceResult` out, without I/O."""
