"""What only a try-out of the product needs: a simulated cluster, worked examples, a simulation of algorithms.

No deployed process imports this package. The commands come by name, when they are called.
"""
