"""The worker that answers kube-scheduler by agents, and lets them learn."""
