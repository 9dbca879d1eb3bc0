"""horovod.mxnet: absent."""

from horovod._absent import refuse

refuse("mxnet", "ciranda trains models of PyTorch alone; Horovod itself has this")
