"""The sinks of `notify`, one module for each kind."""
