"""A small client of the Kubernetes API server: few verbs, plain JSON, a time limit for every call.

`client` sends requests, `reflector` lists and then watches forever, `resources` declares the resources, `errors` sorts
responses by what a caller can do. Of `kubernetes_asyncio` only the reading of kubeconfig files and tokens is used: its
generated models cost more time than the responses.
"""
