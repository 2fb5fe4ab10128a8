"""What tests of sources share: requests as a Prometheus writes them, and a server that answers as one does."""
