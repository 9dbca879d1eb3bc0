"""A network of hosts on this machine, for tests and benchmarks.

Hosts are namespaces, joined by a bridge or by cables that can be slow, lossy or cut. Needs root.
Imports no torch.
"""
