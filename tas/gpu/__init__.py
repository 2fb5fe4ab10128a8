"""GPU cards and their tiles: which a node has, who holds them, and which a pod gets."""
