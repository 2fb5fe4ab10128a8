"""`tas status`: an installation on one screen."""
