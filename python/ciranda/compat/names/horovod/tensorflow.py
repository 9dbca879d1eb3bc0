"""horovod.tensorflow: absent."""

from horovod._absent import refuse

refuse("tensorflow", "ciranda trains models of PyTorch alone; Horovod itself has this")
