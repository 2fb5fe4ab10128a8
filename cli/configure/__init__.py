"""`tas configure`: the scheduler of this machine asks the extenders."""
