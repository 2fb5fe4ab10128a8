"""The public events: what each of them says, and when it is published."""
