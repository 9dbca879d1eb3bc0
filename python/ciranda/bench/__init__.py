"""`ciranda bench`: collectives compared with those of other libraries, printed like nccl-tests.

`cli` is the verb, `measuring` the loop, `worker` a rank of one side. Pure: `case`, `bandwidth`,
`row`, `tables`, `comparison`. Only `worker` and its imports need torch.
"""
