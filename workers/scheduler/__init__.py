"""What workers share that answer kube-scheduler: requests, extensions, metrics, log."""
