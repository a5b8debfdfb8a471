"""Normal numbers, and modules with parameters that are not trivial."""

import torch


def numbers(shape, seed=0, dtype=torch.float64):
    """Normal numbers, the same on all ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def filled(module):
    """Parameters and running statistics that are not trivial, the same on all ranks."""
    with torch.no_grad():
        for i, tensor in enumerate((*module.parameters(), *module.buffers())):
            if tensor.is_floating_point():
                tensor.copy_(numbers(tensor.shape, 50 + i).abs() + 0.5)
    return module
