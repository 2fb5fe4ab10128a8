"""Buckets of the bus followed by watches: views, records, complete lists."""
