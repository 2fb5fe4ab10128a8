"""`tas demo`: worked examples that run without user input."""
