"""HTTP of all processes: servers and clients, with limits and TLS."""
