"""The list of workers, and how each is built from the settings of a process."""
