"""What `ciranda bench`, `ciranda compare` and the benchmarks measure with. Imports no torch."""
