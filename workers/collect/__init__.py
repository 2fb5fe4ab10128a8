"""The worker that polls sources, or receives from them, and publishes their samples."""
