"""horovod.data.data_loader_base: its classes are those of ciranda.torch.data."""

from ciranda.torch.data import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
