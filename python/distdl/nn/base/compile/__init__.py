"""Layers in compiled programs: each is an operator of torch's dispatcher, which calls the layer.

``torch.compile`` and ``torch.export`` trace each rank alone, and cannot follow the votes of the ranks. So the operator
only states the structure of its results, and in the compiled program calls the layer, which votes, sets up and computes
as usual. All ranks make the same calls, compiled or not.
"""

from distdl.nn.base.compile.calls import check_sizes
from distdl.nn.base.compile.torch_ops import call_in_graph
from distdl.torch_compat.compilers import new_key

__all__ = ["call_in_graph", "check_sizes", "new_key"]
