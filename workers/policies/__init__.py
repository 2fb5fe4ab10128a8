"""The worker that stores the policies of a directory."""
