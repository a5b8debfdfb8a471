"""Base classes of torch's layers, hooks on all modules, and the call of a module."""

from torch.nn import Module as _Module
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.dropout import _DropoutNd as AnyDropout
from torch.nn.modules.instancenorm import _InstanceNorm as AnyInstanceNorm
from torch.nn.modules.loss import _Loss as AnyLoss
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

__all__ = ["CODE_OF_CALL", "AnyBatchNorm", "AnyDropout", "AnyInstanceNorm", "AnyLoss", "NormBase", "has_global_hooks"]

CODE_OF_CALL = _Module._call_impl.__code__
"""The code that calls ``forward`` of a module."""
