"""The systems that ciranda compares: a file each."""
