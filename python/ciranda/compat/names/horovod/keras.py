"""horovod.keras: absent."""

from horovod._absent import refuse

refuse("keras", "ciranda trains models of PyTorch alone; Horovod itself has this")
