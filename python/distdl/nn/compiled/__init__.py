"""A layer in a compiled program: one operator of torch's dispatcher, which calls the layer.

``torch.compile`` and ``torch.export`` trace each rank by itself, and cannot follow the agreement of the ranks.
So they do not look into a layer. To them it is an operator that states the structure of its results; in the compiled
program this operator calls the layer, which agrees, sets up and computes as in any other program. Whatever the other
ranks run, they meet in the same calls.
"""

from distdl.nn.compiled.calls import check_sizes
from distdl.nn.compiled.dispatched import call_in_graph
from distdl.nn.compiled.registry import new_key

__all__ = ["call_in_graph", "check_sizes", "new_key"]
