"""`ciranda bench`: collectives, beside those of other libraries, as nccl-tests prints them.

`cli` is the verb, `measuring` the loop, `worker` a rank of one side. Pure: `case`, `bandwidth`,
`row`, `tables`, `comparison`. Only `worker` and what it imports need torch.
"""
