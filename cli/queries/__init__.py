"""The commands that read the bus once and print the result: get, explain, trace."""
