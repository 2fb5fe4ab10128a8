"""`tas certs`: creates, renews and checks certificates."""
