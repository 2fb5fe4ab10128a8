"""Who may do what on the bus: what each role may do, the users of an operator, and what a process shows to a server."""
