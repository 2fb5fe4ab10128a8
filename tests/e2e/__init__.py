"""A real control plane on loopback, and what a real kube-scheduler makes of the extender's answers."""
