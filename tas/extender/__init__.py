"""The scheduler extender's protocol: what kube-scheduler sends, and what we answer. No I/O."""
