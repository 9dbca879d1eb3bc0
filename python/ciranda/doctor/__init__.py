"""`ciranda doctor`: finds faults on this host or between hosts, and names the remedy.

`facts` and `torch_facts` look at a host, `tcp` measures the way between two hosts, `worker` is a
rank of a real all-reduce. `host_checks` (a table of `machine_`, `network_` and `software_checks`),
`hosts_checks` and `job_checks` judge the findings, without I/O. `probe` is the program on each
host, `visit` its caller here, `cli` the command. Only `torch_facts` and `worker`, which are
processes, import torch.
"""
