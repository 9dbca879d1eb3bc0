"""Several hosts on one machine: network namespaces, cables that can be slow, lossy or cut, sshd."""
