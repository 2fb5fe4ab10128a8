"""What leaves the product: events for programs and people."""
