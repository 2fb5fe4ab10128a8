"""How many pods a second a real kube-scheduler places with the product's extender: `make bench-e2e`.

It lives beside the other benchmarks because it shares their figures, tables and simulated nodes; the control plane is
that of `tests/e2e`.
"""
