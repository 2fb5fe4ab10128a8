"""The scheduler extender's protocol: the requests of kube-scheduler and the responses. No I/O."""
