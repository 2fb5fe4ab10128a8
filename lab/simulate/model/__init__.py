"""A cluster in a box: which nodes pods get, and how busy these nodes become, under a load that is known beforehand.

The same load is placed by each *algorithm*: the default scores of kube-scheduler alone, or together with policies or
agents. Everything is a function of the load and a seed, so two runs give the same numbers.
"""
