"""One job on this host: its processes, their output, its end, and the report of a failure."""
