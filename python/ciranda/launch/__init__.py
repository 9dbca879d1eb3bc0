"""The launcher: `ciranda run -np 4 train.py`. Imports no torch."""
