"""What workers share that are a source of samples: which metrics are wanted, publishing, states."""
