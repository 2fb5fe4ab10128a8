"""`tas bus`: the address of the bus, and who may do what on it."""
