"""A distributed layer beside its sequential twin."""

import torch

from support.blocks import assemble, block_of
from support.ranks import together
from support.tensors import values


def derivatives(layer, x, parameters, cotangent, directions, look_at=lambda y: None):
    """The result, the gradients of <result, cotangent>, and of <these gradients, directions>.

    The gradients are with respect to x and the parameters, the second ones also to the cotangent. The sequential layer
    takes whole tensors; a distributed layer takes blocks, and the sums over all ranks are differentiated.
    `look_at` sees the result before it is differentiated.
    """
    leaves = [x.requires_grad_(), *parameters]
    y = layer(x)
    look_at(y)
    cotangent = cotangent.reshape(y.shape).requires_grad_()  # zero volume comes in several shapes
    first = torch.autograd.grad(y, leaves, cotangent, create_graph=True)
    directions = [direction.reshape(g.shape) for direction, g in zip(directions, first, strict=True)]
    second = torch.autograd.grad(first, [*leaves, cotangent], directions, allow_unused=True, materialize_grads=True)
    return [t.detach() for t in (y, *first, *second)]


def assert_equals_twin(
    layer,
    twin,
    x,
    P_x,
    P_y,
    parameter_partitions=(),
    sizes=None,
    y_sizes=None,
    equal=torch.equal,
    equal_derivatives=None,
):
    """A distributed layer's results, put together, are its sequential twin's, up to the second derivatives.

    x is the whole input, of which each worker passes its block, balanced or of these sizes; y_sizes are the sizes of
    the result. The layer gets the twin's parameters, each in balanced blocks on its partition.
    """
    partitions = [P_x, *parameter_partitions]
    wholes = [x, *(p.detach() for p in twin.parameters())]
    cotangent = values(twin(x).shape, x.dtype, seed=1)
    directions = [values(whole.shape, x.dtype, seed=2 + i) for i, whole in enumerate(wholes)]
    expected = derivatives(twin, x.clone(), list(twin.parameters()), cotangent.clone(), directions)

    def own_block(whole, i):
        return block_of(whole, partitions[i], sizes if i == 0 else None)

    own_cotangent = block_of(cotangent, P_y, y_sizes)

    def check_shapes(y):
        """On all ranks, before those with the right shape go on and wait for the others."""
        fits = y.shape == own_cotangent.shape if P_y.active else y.numel() == 0
        everyone = together((fits, tuple(y.shape), tuple(own_cotangent.shape)))
        assert all(fits for fits, *_ in everyone), f"(fits, shape, expected) of the result on each rank: {everyone}"

    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters(), start=1):
            parameter.copy_(own_block(wholes[i], i).reshape(parameter.shape))
    blocks = derivatives(
        layer,
        own_block(x, 0),
        list(layer.parameters()),
        own_cotangent,
        [own_block(direction, i) for i, direction in enumerate(directions)],
        check_shapes,
    )
    where = [(P_y, y_sizes), (P_x, sizes), *((P, None) for P in parameter_partitions)]
    where += [*where[1:], where[0]]
    equals = [equal, *[equal_derivatives or equal] * (len(where) - 1)]
    for block, whole, (P, sizes_on_P), equal_here in zip(blocks, expected, where, equals, strict=True):
        assert P.active or block.numel() == 0
        joined = assemble(block, P, whole.shape, sizes_on_P)
        assert joined.dtype == whole.dtype
        assert equal_here(joined, whole), (joined, whole)
