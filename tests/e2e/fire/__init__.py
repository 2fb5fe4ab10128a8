"""A cluster in use, with faults one after another: users, faults, and what was measured meanwhile."""
