"""A TASPolicy: its text as a value, and the state of its rules (violated, met, unknown)."""
