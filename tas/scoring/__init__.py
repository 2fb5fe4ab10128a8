"""Scores of candidate nodes, from 0 to 10."""
