"""The workers that publish what happens."""
