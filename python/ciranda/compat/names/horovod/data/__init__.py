"""horovod.data."""
