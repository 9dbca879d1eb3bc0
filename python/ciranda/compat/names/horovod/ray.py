"""horovod.ray: absent."""

from horovod._absent import refuse

refuse(
    "ray",
    "ciranda does not start ranks through Ray yet; `ciranda run` starts a script, "
    "`ciranda.run()` a function",
)
