"""Models over partitions beside themselves in one process."""

import copy

import torch
from torch.utils._pytree import tree_leaves

import distdl
from support.blocks import grid
from support.ranks import job, together

P_world = distdl.Partition(job)


def partitions(dims):
    """Ways to split the batch and space over all ranks of the job, and over all but one."""
    shapes = []
    for size in sorted({P_world.size, max(1, P_world.size - 1)}):
        shapes += [[size if i == d else 1 for i in range(dims)] for d in (0, *range(2, dims))]
        if size == 4 and dims > 3:
            shapes.append([1] * (dims - 2) + [2, 2])
    return shapes


def noise(shape, seed=0):
    """Numbers that no operation maps to equal numbers."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def off(ours, expected, tolerance=1e-10):
    """The error of a tensor on the first rank: "" if it is as expected up to rounding."""
    if job.rank:
        return ""
    if ours.shape != expected.shape:
        return f"shape {list(ours.shape)}, not {list(expected.shape)}"
    largest = max(1e-3, float(expected.detach().abs().max())) if expected.numel() else 1.0
    error = float((ours.cpu().double() - expected.double()).detach().abs().max()) if ours.numel() else 0.0
    return "" if error <= tolerance * largest else f"off by {error:.1e} of {largest:.1e}"


def assert_none(problems):
    """On all ranks, so that none goes on alone."""
    reports = [together(problem)[0] for problem in problems]
    assert not any(reports), reports


def over_rows(model):
    """The model over blocks of rows, and their partition."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    return distdl.distribute(model, P_x), P_x


def whole(ours, *inputs, **arguments):
    """The result of a distributed model, on rank 0."""
    return distdl.gather(ours(*inputs, **arguments), ours.output_partition)


def step(model, x, gather=lambda y: y):
    """The results of a model, and the loss of them."""
    leaves = [leaf for leaf in tree_leaves(gather(model(x))) if isinstance(leaf, torch.Tensor)]
    loss = sum((leaf * noise(leaf.shape, seed=i).to(leaf.device)).sum() for i, leaf in enumerate(leaves))
    return leaves, loss


def assert_equal_models(model, shape, split, training=True, device="cpu", **options):
    """Results and gradients, and what training leaves in buffers. Returns the model over partitions, on the device."""
    sequential = copy.deepcopy(model).train(training)
    P_x = grid(P_world, split)
    ours = distdl.distribute(model, P_x, **options).to(device).train(training)
    whole = noise(shape, seed=1).requires_grad_()
    x = distdl.scatter(whole.detach(), P_x).detach().to(device).requires_grad_()
    leaves, loss = step(ours, x, lambda y: distdl.gather(y, ours.output_partition))
    loss.backward()
    expected, loss = step(sequential, whole)
    loss.backward()
    gradients, state = distdl.sequential_gradients(ours), distdl.sequential_state_dict(ours)
    gradient_of_x = distdl.gather(x.grad, P_x)
    problems = []
    if job.rank == 0:
        problems += [off(leaf, other) for leaf, other in zip(leaves, expected, strict=True)]
        problems.append(off(gradient_of_x, whole.grad, 1e-9))
        for name, parameter in sequential.named_parameters():
            wrong = off(gradients[name], parameter.grad, 1e-9)
            problems.append(wrong and f"gradient of {name} {wrong}")
        problems += [off(state[name], value) for name, value in sequential.state_dict().items()]
    assert_none([" ".join(filter(None, [str(split), *problems])) if any(problems) else ""])
    return ours
