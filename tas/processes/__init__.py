"""Which processes of the product run, and how many should."""
