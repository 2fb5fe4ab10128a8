"""The worker that creates the streams and buckets of a closed bus."""
