"""The commands: options in, one job out."""
