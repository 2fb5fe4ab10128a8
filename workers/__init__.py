"""One stateless worker a file: each consumes events, and any copy of it can be killed at any line."""
