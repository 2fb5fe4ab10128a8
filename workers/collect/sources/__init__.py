"""The kinds of sources."""
