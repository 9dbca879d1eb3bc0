"""Each rank's share of the samples."""

from ciranda.torch.data.sampler import DistributedSampler

__all__ = ["DistributedSampler"]
