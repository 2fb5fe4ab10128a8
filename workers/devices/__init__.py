"""GPU cards of nodes: what there is, and who has it."""
