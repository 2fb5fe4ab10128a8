"""The values of keys and messages: one record in each file, with its encoder and decoder.

JSON, times as RFC 3339, quantities as Kubernetes text, so that any language and a person with the `nats` command can
read and write them. Fields are only added, never removed; new fields are optional, and unknown fields are ignored. If
the JSON of a record differs from the type in `tas/`, the file has a private struct for the JSON.
"""
