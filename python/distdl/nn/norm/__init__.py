"""Normalization over blocks: by batch, instance, group, layer and root mean square, and by neighboring channels."""

from distdl.nn.norm.batch import *  # noqa: F403
from distdl.nn.norm.batch import __all__ as _batch
from distdl.nn.norm.features import *  # noqa: F403
from distdl.nn.norm.features import __all__ as _features
from distdl.nn.norm.group import *  # noqa: F403
from distdl.nn.norm.group import __all__ as _group
from distdl.nn.norm.instance import *  # noqa: F403
from distdl.nn.norm.instance import __all__ as _instance
from distdl.nn.norm.local_response import *  # noqa: F403
from distdl.nn.norm.local_response import __all__ as _local_response

__all__ = [*_batch, *_features, *_group, *_instance, *_local_response]
