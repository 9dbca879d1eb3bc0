"""Measuring for `ciranda bench`, `ciranda compare` and the benchmarks. Imports no torch."""
