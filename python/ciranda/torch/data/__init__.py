"""Each rank's share of the samples, and batches that are read ahead."""

from ciranda.torch.data.async_loader import AsyncDataLoaderMixin, BaseDataLoader
from ciranda.torch.data.sampler import DistributedSampler

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader", "DistributedSampler"]
