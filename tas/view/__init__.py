"""The materialized view of nodes and policies, from which every answer comes, and a heap of deadlines."""
