"""Layers in compiled programs: each is an operator of torch's dispatcher, which calls the layer.

``torch.compile`` and ``torch.export`` trace each rank alone, and cannot follow the votes of the ranks. So the operator
only states the structure of its results, and in the compiled program calls the layer, which votes, sets up and computes
as usual. All ranks make the same calls, compiled or not.
"""

from distdl.nn.compiled.calls import check_sizes
from distdl.nn.compiled.dispatched import call_in_graph
from distdl.nn.compiled.registry import new_key

__all__ = ["call_in_graph", "check_sizes", "new_key"]
