"""`ciranda compare`: trains one model in many ways, and compares time and accuracy.

A study is a file of `studies/`, a system a file of `systems/`. `study.py` turns a study into
settings, `runs.py` runs a setting with a system, `worker.py` is a process of a run, `table.py` and
`page.py` show the results. Only code that runs in a worker imports torch.
"""
