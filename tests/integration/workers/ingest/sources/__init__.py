"""Each kind of source over real sockets."""
