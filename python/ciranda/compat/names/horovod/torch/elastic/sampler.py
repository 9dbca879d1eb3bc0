"""horovod.torch.elastic.sampler"""

from ciranda.torch.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
