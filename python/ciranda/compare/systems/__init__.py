"""The systems that ciranda compares, one file for each."""
