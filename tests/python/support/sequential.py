"""A layer on blocks beside its twin on the whole: values, first and second derivatives, parameters and buffers."""

import itertools

import torch
from torch.utils._pytree import tree_map_only

import distdl
from support.blocks import balanced
from support.ranks import together
from support.tensors import values


def slices_of(P, shape, cut, sizes=None):
    """The slices of this worker's block: balanced along each axis of P, or of these sizes unless they are None."""
    slices = []
    for n, axis in zip(shape, cut, strict=True):
        if axis is None:
            slices.append(slice(0, n))
        elif sizes is None or sizes[axis] is None or sum(sizes[axis]) != n:
            slices.append(slice(*balanced(n, int(P.shape[axis]), int(P.index[axis]))))
        else:
            place = int(P.index[axis])
            slices.append(slice(sum(sizes[axis][:place]), sum(sizes[axis][: place + 1])))
    return tuple(slices)


def all_on_the_first(example, shape):
    """Along each axis that may be cut anywhere, all elements on the first worker."""
    extents = {
        axis: n
        for x, cut in zip(example.inputs(), example.cuts, strict=True)
        for n, axis in zip(x.shape, cut, strict=True)
        if axis is not None and axis not in example.balanced
    }
    return [[extents[axis], *[0] * (p - 1)] if axis in extents else None for axis, p in enumerate(shape)]


def has_block(P, first_of=()):
    """Whether this rank has a block of a tensor."""
    return P.active and not any(P.index[axis] for axis in first_of)


def block(whole, P, cut, sizes=None, first_of=()):
    """This worker's block of a tensor that all ranks have; a zero-volume tensor on the other ranks."""
    if cut is None:
        return whole.clone()
    if not has_block(P, first_of):
        return distdl.zero_volume_tensor(dtype=whole.dtype)
    return whole[slices_of(P, whole.shape, cut, sizes)].clone()


def joined(local_part, shape, slices):
    """The sum of all ranks' parts of a tensor, each at its place; on all ranks."""
    whole = None
    for part in together(
        None
        if slices is None
        else (slices, local_part.detach().cpu().clone().reshape([s.stop - s.start for s in slices]))
    ):
        if part is not None:
            whole = torch.zeros(tuple(shape), dtype=part[1].dtype) if whole is None else whole
            whole[part[0]] += part[1]
    return whole


def joined_blocks(local_block, P, shape, cut, sizes=None, first_of=()):
    """The whole tensor from blocks, all equal blocks added up."""
    if cut is None:
        return joined(local_block, shape, tuple(slice(0, n) for n in shape))
    return joined(local_block, shape, slices_of(P, shape, cut, sizes) if has_block(P, first_of) else None)


def layouts_of(module):
    """The layouts of all parameters in blocks within a module, by their full names."""
    return {
        f"{prefix}.{name}".removeprefix("."): layout
        for prefix, submodule in module.named_modules()
        for name, layout in getattr(submodule, "layouts", {}).items()
    }


def parameter_slices(layout):
    """The slices of the part of a parameter that lives on this rank; None for no part."""
    return None if layout.intervals is None else tuple(itertools.starmap(slice, layout.intervals))


def as_tuple(results):
    """The results that are there."""
    return tuple(y for y in results if y is not None) if isinstance(results, tuple | list) else (results,)


def derivatives(results, leaves, cotangents, directions, second):
    """The gradients of <results, cotangents>, and of <these gradients, directions>, by the cotangents too."""
    cotangents = [c.reshape(y.shape).requires_grad_() for c, y in zip(cotangents, results, strict=True)]
    first = torch.autograd.grad(
        results, leaves, cotangents, create_graph=second, allow_unused=True, materialize_grads=True
    )
    if not second:
        return list(first), []
    directions = [direction.reshape(g.shape) for direction, g in zip(directions, first, strict=True)]
    return list(first), list(
        torch.autograd.grad(first, [*leaves, *cotangents], directions, allow_unused=True, materialize_grads=True)
    )


def close(result, whole, tolerance):
    """Equality up to roundings, relative to the largest element; values that are not finite are equal."""
    if result is None:
        return whole.numel() == 0
    if result.dtype != whole.dtype or result.shape != whole.shape:
        return False
    finite = whole[whole.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    return torch.allclose(result, whole, rtol=0, atol=tolerance * scale, equal_nan=True)


def assert_equals_sequential(example, P, sizes=None, layout="owner", device="cpu"):
    """The results of the layer on P, put together, are its twin's. `sizes`: of the blocks along the axes of P.

    The layer is on the device, its twin on the CPU.

    Compared are the results, the gradients of all inputs and parameters, the second derivatives, and
    ``state_dict()`` afterwards. Returns the layer.
    """
    twin = example.twin()
    with distdl.parameter_layout(layout):
        layer = example.make(twin, P).to(device)
    wholes, names = example.inputs(), [name for name, _ in twin.named_parameters()]
    assert [name for name, _ in layer.named_parameters()] == names
    chosen = example.differentiable
    if chosen is None:
        chosen = [i for i, x in enumerate(wholes) if x.is_floating_point() or x.is_complex()]
    layouts = layouts_of(layer)

    own = [block(x, P, cut, sizes).to(device) for x, cut in zip(wholes, example.cuts, strict=True)]
    call = tree_map_only(torch.Tensor, lambda x: x.to(device), example.call)
    for i in chosen:
        wholes[i].requires_grad_()
        own[i].requires_grad_()
    results, own_results = as_tuple(twin(*wholes, **example.call)), as_tuple(layer(*own, **call))
    assert len(results) == len(own_results) == len(example.results)

    where = [(example.cuts[i], ()) for i in chosen]
    outcome = [(cut, example.first_of) for cut in example.results]
    for y, own_y, (cut, first_of) in zip(results, own_results, outcome, strict=True):
        expected = block(y, P, cut, sizes, first_of)
        everyone = together((tuple(own_y.shape), tuple(expected.shape), own_y.dtype == y.dtype))
        assert all((a == b or 0 in a) and (0 not in a or 0 in b) and fits for a, b, fits in everyone), (
            f"(shape, expected shape, dtype) of the result on each rank: {everyone}"
        )
        if cut is None:
            assert all(close(copy, y.detach(), example.tolerance) for copy in together(own_y.detach().cpu())), (
                own_y,
                y,
            )
        else:
            whole = joined_blocks(own_y, P, y.shape, cut, sizes, first_of)
            assert close(whole, y.detach(), example.tolerance), (whole, y)

    leaves = [wholes[i] for i in chosen] + [p for p in twin.parameters() if p.requires_grad]
    own_leaves = [own[i] for i in chosen] + [p for p in layer.parameters() if p.requires_grad]
    used = [name for name, p in twin.named_parameters() if p.requires_grad]
    graph = [i for i, y in enumerate(results) if y.requires_grad]
    if leaves and graph:
        cotangents = [values(results[i].shape, results[i].dtype, seed=11 + i) - 1.5 for i in graph]
        directions = [values(leaf.shape, leaf.dtype, seed=21 + i) - 1.5 for i, leaf in enumerate(leaves)]

        def of_leaves(tensors):
            parts = [block(t, P, cut, sizes) for t, (cut, _) in zip(tensors, where, strict=False)]
            for name, t in zip(used, tensors[len(where) :], strict=True):
                at = parameter_slices(layouts[name])
                parts.append(t[at].clone() if at is not None else t.new_zeros(layouts[name].local_shape))
            return [part.to(device) for part in parts]

        def whole_leaves(parts):
            joined_leaves = [
                joined_blocks(t, P, leaf.shape, cut, sizes)
                for t, leaf, (cut, _) in zip(parts, leaves, where, strict=False)
            ]
            for name, t, leaf in zip(used, parts[len(where) :], leaves[len(where) :], strict=True):
                joined_leaves.append(joined(t, leaf.shape, parameter_slices(layouts[name])))
            return joined_leaves

        first, second = derivatives(
            [results[i] for i in graph], leaves, [c.clone() for c in cotangents], directions, example.second
        )
        own_cotangents = [
            block(c, P, outcome[i][0], sizes, outcome[i][1]).to(device) for i, c in zip(graph, cotangents, strict=True)
        ]
        own_first, own_second = derivatives(
            [own_results[i] for i in graph], own_leaves, own_cotangents, of_leaves(directions), example.second
        )
        labels = [*(f"input {i}" for i in chosen), *used]
        for label, g, whole in zip(labels, whole_leaves(own_first), first, strict=True):
            assert close(g, whole.detach(), 10 * example.tolerance), (f"gradient of {label}", g, whole)
        if example.second:
            sums = whole_leaves(own_second[: len(leaves)])
            sums += [
                joined_blocks(t, P, results[i].shape, *(outcome[i][0], sizes, outcome[i][1]))
                for i, t in zip(graph, own_second[len(leaves) :], strict=True)
            ]
            for label, g, whole in zip([*labels, *(f"cotangent {i}" for i in graph)], sums, second, strict=True):
                assert close(g, whole.detach(), 100 * example.tolerance), (f"second derivative of {label}", g, whole)

    state = distdl.sequential_state_dict(layer)
    if state:
        expected = twin.state_dict()
        assert set(state) == set(expected), (set(state), set(expected))
        for name, value in expected.items():
            assert close(state[name].cpu(), value, 10 * example.tolerance), (name, state[name], value)
    return layer
