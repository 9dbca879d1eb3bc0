"""horovod.common: the parts that scripts use."""
