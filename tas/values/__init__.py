"""Values that every room needs: quantities, durations, names of Kubernetes."""
