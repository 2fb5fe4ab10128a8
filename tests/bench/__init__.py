"""The budgets, each measured beside its floor in one run: `python -m tests.bench`."""
