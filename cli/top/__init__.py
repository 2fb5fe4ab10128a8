"""`tas top`, and the live view that `tas up` shows, too."""
