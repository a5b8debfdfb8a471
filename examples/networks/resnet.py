"""A ResNet-18 on images that are split over the ranks, and its sequential twin.

Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition" (2016).
"""

import torch

import distdl.nn as dnn


class SequentialBlock(torch.nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before, channels, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(channels)
        self.shortcut = torch.nn.Sequential()
        if stride != 1 or before != channels:
            self.shortcut = torch.nn.Sequential(
                torch.nn.Conv2d(before, channels, 1, stride, bias=False), torch.nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class SequentialResNet18(torch.nn.Module):
    """In one process."""

    def __init__(self, width=64, classes=10):
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages, before = [], width
        for i, channels in enumerate([width, 2 * width, 4 * width, 8 * width]):
            stages += [SequentialBlock(before, channels, 1 if i == 0 else 2), SequentialBlock(channels, channels, 1)]
            before = channels
        self.stages = torch.nn.Sequential(*stages)
        self.pool = torch.nn.AdaptiveAvgPool2d(1)
        self.flatten = torch.nn.Flatten()
        self.head = torch.nn.Linear(before, classes)

    def forward(self, x):
        return self.head(self.flatten(self.pool(self.stages(self.stem(x)))))


class Block(torch.nn.Module):
    """The same block with images split over P_x."""

    def __init__(self, P_x, before, channels, stride):
        super().__init__()
        self.conv1 = dnn.DistributedConv2d(P_x, before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = dnn.DistributedBatchNorm2d(P_x, channels)
        self.conv2 = dnn.DistributedConv2d(P_x, channels, channels, 3, padding=1, bias=False)
        self.bn2 = dnn.DistributedBatchNorm2d(P_x, channels)
        self.shortcut = torch.nn.Sequential()
        if stride != 1 or before != channels:
            self.shortcut = torch.nn.Sequential(
                dnn.DistributedConv2d(P_x, before, channels, 1, stride, bias=False),
                dnn.DistributedBatchNorm2d(P_x, channels),
            )

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(torch.nn.Module):
    """On P_x of shape [batch, 1, height, width]; the scores come on P_y of shape [batch, 1]."""

    def __init__(self, P_x, P_y, width=64, classes=10):
        super().__init__()
        self.stem = torch.nn.Sequential(
            dnn.DistributedConv2d(P_x, 3, width, 7, stride=2, padding=3, bias=False),
            dnn.DistributedBatchNorm2d(P_x, width),
            torch.nn.ReLU(),
            dnn.DistributedMaxPool2d(P_x, 3, stride=2, padding=1),
        )
        stages, before = [], width
        for i, channels in enumerate([width, 2 * width, 4 * width, 8 * width]):
            stages += [Block(P_x, before, channels, 1 if i == 0 else 2), Block(P_x, channels, channels, 1)]
            before = channels
        self.stages = torch.nn.Sequential(*stages)
        self.pool = dnn.DistributedAdaptiveAvgPool2d(P_x, 1)
        self.flatten = dnn.DistributedFlatten(P_x, P_y=P_y)
        self.head = dnn.DistributedLinear(P_y, before, classes)

    def forward(self, x):
        return self.head(self.flatten(self.pool(self.stages(self.stem(x)))))
