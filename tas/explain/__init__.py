"""Why a node is rejected, and at which stage a value has stopped."""
