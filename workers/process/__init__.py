"""What every process has: its lifetime, logs, health port, and HTTP servers with TLS."""
