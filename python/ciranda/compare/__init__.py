"""`ciranda compare`: trains one model in many ways, and shows what each takes and reaches.

A study is a file of `studies/`, a system one of `systems/`; `study.py` turns the first into
settings, `jobs.py` runs a setting with a system, `worker.py` is a process of it, `table.py` and
`page.py` show what came out. Only what runs in a worker imports torch.
"""
