"""horovod.spark: absent."""

from horovod._absent import refuse

refuse(
    "spark",
    "ciranda does not start ranks through Spark yet; `ciranda run` starts a script, "
    "`ciranda.run()` a function",
)
