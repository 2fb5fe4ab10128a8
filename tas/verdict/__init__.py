"""What samples mean for a node under each policy: verdicts, and the status of a policy counted from them."""
