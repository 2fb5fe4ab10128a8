"""The kinds of sinks."""
