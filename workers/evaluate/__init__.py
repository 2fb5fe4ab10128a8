"""The worker that evaluates every policy for every node, and stores the verdicts."""
