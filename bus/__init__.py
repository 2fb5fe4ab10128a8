"""The bus: subjects, buckets and messages as plain data, and the only importer of the NATS client.

The bus is soft state: whatever stands on it can be had again from its sources and from the Kubernetes API.
Every call ends within a stated time, whatever the server does, and every derived write is conditional.
"""
