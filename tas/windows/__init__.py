"""Windows: statistics of a metric over a duration, which are metrics themselves."""
