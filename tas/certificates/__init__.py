"""The certificates of the extender and its clients: what they say, how long they are valid, what is wrong with them."""
