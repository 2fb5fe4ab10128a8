"""The Kubernetes API server as the workers need it: few verbs, JSON as it comes, every call ended in time.

`client` asks, `reflector` lists and then watches for ever, `resources` names what there is, `errors` says what a
caller can do about a refusal. `kubernetes_asyncio` reads kubeconfig files and tokens, and nothing else of it is used:
its generated models cost more time than the answers.
"""
