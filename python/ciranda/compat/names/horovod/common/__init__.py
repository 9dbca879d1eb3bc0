"""horovod.common: what scripts take from it."""
