"""The bus: subjects, buckets and messages as plain data, and the only importer of the NATS client.

The bus is soft state: everything on it can be rebuilt from the sources and from the Kubernetes API.
Every call has a time limit, and every derived write is conditional.
"""
