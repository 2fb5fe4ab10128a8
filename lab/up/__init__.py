"""`tas up`: runs the whole product on a simulated cluster, with a live view."""
