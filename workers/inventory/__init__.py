"""The worker that stores the GPU cards of nodes, and what agents need to know of pods and nodes."""
