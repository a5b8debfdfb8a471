import torch
from torch import nn

import distdl
import distdl.nn as dnn

P_world = distdl.Partition()
P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1])
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)  # so that a mistake is far larger than rounding
images = torch.rand(4, 1, 12, 12)
sequential = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))


def results_of(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The result of each layer by name, and the gradients of the parameters."""
    results = {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda layer, inputs, y, name=name: results.update({name: y.detach()}))
    model(x).square().sum().backward()
    return results


def compare(title: str, norm: nn.Module) -> None:
    """Print how far each layer of the model in blocks is from the sequential one."""
    model = nn.Sequential(
        dnn.DistributedConv2d(P_x, 1, 4, 3, padding=1), norm, nn.ReLU(), dnn.DistributedConv2d(P_x, 4, 1, 3, padding=1)
    )
    distdl.load_sequential(model, sequential.state_dict())
    blocks = results_of(model, distdl.scatter(images, P_x))
    ours = {f"result of {name}": distdl.gather(block, P_x) for name, block in blocks.items()}  # on rank 0
    if not isinstance(norm, nn.BatchNorm2d):
        ours |= {f"gradient of {name}": gradient for name, gradient in distdl.sequential_gradients(model).items()}
    if P_world.rank > 0:
        return
    sequential.zero_grad()
    expected = {f"result of {name}": result for name, result in results_of(sequential, images).items()}
    gradients = {f"gradient of {name}": p.grad for name, p in sequential.named_parameters()}
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, value in ours.items():
        whole = expected[name] if name in expected else gradients[name]
        error = (value - whole).abs().max() / (whole.abs().max() if name in expected else largest)
        print(f"{title}, {name}: {f'off by {error:.2f}' if error > 1e-10 else 'equal up to rounding'}")


compare("wrong", nn.BatchNorm2d(4))
compare("right", dnn.DistributedBatchNorm2d(P_x, 4))
