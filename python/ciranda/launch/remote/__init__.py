"""Ranks of other hosts: agents over ssh, and where the hosts meet."""
