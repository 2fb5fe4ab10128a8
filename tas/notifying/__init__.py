"""What leaves the product about events, and when: the rules of the sinks of `tas run notify`."""
