"""What workers share that write to nodes or pods: queue, lease, inputs, patches, confirmation, refusals."""
