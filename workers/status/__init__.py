"""The worker that writes the status of TASPolicies."""
