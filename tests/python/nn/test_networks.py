"""Networks as users write them, of many layers, beside the same networks of torch.nn: a ResNet-18 and a 3-d U-Net.

The networks are written once, for the layers of torch.nn or of distdl.nn, and have the same names of parameters.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

import distdl
import distdl.nn as dnn
from support.blocks import block_of, grid
from support.ranks import job
from support.sequential import joined, joined_blocks, layouts_of, parameter_slices


def sequential(name, *arguments, **options):
    """A layer of torch.nn, in double precision where it has parameters."""
    return getattr(torch.nn, name)(*arguments, **options).double()


def distributed(P_x, name, *arguments, **options):
    """The layer of the same name over P_x."""
    return getattr(dnn, f"Distributed{name}")(P_x, *arguments, **options).double()


class Residual(torch.nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, layer, before, after, stride):
        super().__init__()
        self.conv1 = layer("Conv2d", before, after, 3, stride, 1, bias=False)
        self.bn1 = layer("BatchNorm2d", after)
        self.conv2 = layer("Conv2d", after, after, 3, padding=1, bias=False)
        self.bn2 = layer("BatchNorm2d", after)
        self.downsample = None
        if stride > 1 or before != after:
            self.downsample = torch.nn.Sequential(
                layer("Conv2d", before, after, 1, stride, bias=False), layer("BatchNorm2d", after)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(torch.nn.Module):
    """The layers of ResNet-18 with few channels. `head`: makes the layers behind the images."""

    def __init__(self, layer, head, channels=(3, 4, 5, 6), classes=7):
        super().__init__()
        self.conv1 = layer("Conv2d", 2, channels[0], 7, 2, 3, bias=False)
        self.bn1 = layer("BatchNorm2d", channels[0])
        self.maxpool = layer("MaxPool2d", 3, 2, 1)
        blocks = []
        for i, (before, after) in enumerate(zip((channels[0], *channels), channels, strict=False)):
            blocks += [Residual(layer, before, after, 1 if i == 0 else 2), Residual(layer, after, after, 1)]
        self.blocks = torch.nn.Sequential(*blocks)
        self.avgpool = layer("AdaptiveAvgPool2d", 1)
        self.flatten, self.fc = head(channels[-1], classes)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        return self.fc(self.flatten(self.avgpool(self.blocks(x))))


class UNet(torch.nn.Module):
    """A 3-d U-Net of two levels."""

    def __init__(self, layer):
        super().__init__()

        def twice(before, after):
            return torch.nn.Sequential(
                layer("Conv3d", before, after, 3, padding=1), layer("BatchNorm3d", after), torch.nn.ReLU(),
                layer("Conv3d", after, after, 3, padding=1), layer("BatchNorm3d", after), torch.nn.ReLU(),
            )  # fmt: skip

        self.encoder1, self.encoder2, self.bottom = twice(1, 2), twice(2, 3), twice(3, 4)
        self.pool1, self.pool2 = layer("MaxPool3d", 2), layer("MaxPool3d", 2)
        self.up2, self.up1 = layer("ConvTranspose3d", 4, 3, 2, 2), layer("ConvTranspose3d", 3, 2, 2, 2)
        self.decoder2, self.decoder1 = twice(6, 3), twice(4, 2)
        self.last = layer("Conv3d", 2, 1, 1)

    def forward(self, x):
        first = self.encoder1(x)
        second = self.encoder2(self.pool1(first))
        x = self.up2(self.bottom(self.pool2(second)))
        x = self.up1(self.decoder2(torch.cat([second, x], 1)))
        return self.last(self.decoder1(torch.cat([first, x], 1)))


def uneven(n, p):
    """Blocks of n elements over p workers, of which the first has twice as many as the last ones."""
    each = n // (p + 1)
    return [n - (p - 1) * each, *[each] * (p - 1)]


def assert_equal(model, twin, criterion, twin_criterion, x, target, P_x, P_target):
    """The loss, the gradients of input and parameters, and the state afterwards, from the same weights."""
    distdl.load_sequential(model, twin.state_dict())
    workers = [int(p) for p in P_x.shape]
    sizes = [uneven(n, p) if d > 1 and p > 1 else None for d, (n, p) in enumerate(zip(x.shape, workers, strict=True))]
    mine, x = block_of(x, P_x, sizes).requires_grad_(), x.clone().requires_grad_()
    expected = twin_criterion(twin(x), target)
    loss = criterion(model(mine), block_of(target, P_target))
    expected.backward()
    loss.backward()
    assert abs(loss.item() - expected.item()) <= 1e-12 * max(1.0, abs(expected.item()))

    layouts, whole = layouts_of(model), dict(twin.named_parameters())
    assert [name for name, _ in model.named_parameters()] == list(whole)
    found = {"input": (joined_blocks(mine.grad, P_x, x.shape, range(x.dim()), sizes), x.grad)}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found[name] = joined(gradient, whole[name].shape, parameter_slices(layouts[name])), whole[name].grad
    for name, (gradient, right) in found.items():
        error = float((gradient - right).abs().max())
        assert error <= 1e-10 * max(1.0, float(right.abs().max())), (name, error)

    state = distdl.sequential_state_dict(model)
    for name, value in twin.state_dict().items() if state else ():
        assert torch.allclose(state[name], value, rtol=0, atol=1e-12), name


def grids(dims):
    """Ways to split so many spatial dimensions over all ranks, and the batch with them."""
    rest = [1] * (dims - 2)
    return {2: [[1, 1, 2, 1, *rest]], 3: [[1, 1, 1, 3, *rest]], 4: [[1, 1, 2, 2, *rest], [2, 1, *rest, 1, 2]]}[job.size]


@pytest.mark.ranks(2, 3, 4)
def test_resnet18(P_world):
    """Images split in space, their features split along the batch over all workers."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(5, 2, 45, 41, generator=generator, dtype=torch.float64)
    target = torch.randint(7, (5,), generator=generator)
    P_batch, P_target = grid(P_world, [job.size, 1]), grid(P_world, [job.size])
    for shape in grids(2):
        P_x = grid(P_world, shape)

        def head(features, classes, P_x=P_x):
            flatten = dnn.DistributedFlatten(P_x, P_y=P_batch)
            return flatten, dnn.DistributedLinear(P_batch, features, classes, dtype=torch.float64)

        def sequential_head(features, classes):
            return sequential("Flatten"), sequential("Linear", features, classes)

        torch.manual_seed(3)
        twin = ResNet18(sequential, sequential_head)
        model = ResNet18(partial(distributed, P_x), head)
        criterion = dnn.DistributedCrossEntropyLoss(P_batch)
        assert_equal(model, twin, criterion, torch.nn.CrossEntropyLoss(), x, target, P_x, P_target)


@pytest.mark.ranks(2, 3, 4)
def test_unet(P_world):
    """Volumes split in space; levels meet in the same balanced blocks."""
    generator = torch.Generator().manual_seed(2)
    x, target = (torch.randn(2, 1, 12, 8, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    for shape in grids(3):
        P_x = grid(P_world, shape)
        torch.manual_seed(3)
        twin, model = UNet(sequential), UNet(partial(distributed, P_x))
        assert_equal(model, twin, dnn.DistributedMSELoss(P_x), torch.nn.MSELoss(), x, target, P_x, P_x)
