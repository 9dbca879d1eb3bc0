"""`ciranda doctor`: what is wrong on this host or between hosts, and what mends it.

`facts` and `torch_facts` look at a host, `tcp` measures the way between two, `worker` is a rank of
a real all-reduce. `host_checks` (a table of `machine_`, `network_` and `software_checks`),
`hosts_checks` and `job_checks` judge what was found, without I/O.
`probe` is the program on each host, `visit` this side of it, `cli` the command. Imports no torch,
but in processes of their own (`torch_facts`, `worker`).
"""
