"""The scheduler extender over HTTP, with extensions beside it."""
