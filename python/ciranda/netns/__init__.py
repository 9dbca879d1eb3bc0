"""Hosts of a network that lives on this machine: namespaces, joined by a bridge or by cables that
can be slow, lossy or cut. Needs root. Imports no torch."""
