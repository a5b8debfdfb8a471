"""Small models of torch, of the patterns that networks are made of."""

import torch
import torch.nn.functional as F


class Function(torch.nn.Module):
    """A function as a model; of a layer, if there is one."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x):
        return self.function(x) if self.layer is None else self.function(self.layer, x)


class Residual(torch.nn.Module):
    """A convolution whose input is added, norms, and a head behind global pooling."""

    def __init__(self, channels=4, classes=3):
        super().__init__()
        self.stem = torch.nn.Conv2d(2, channels, 3, stride=2, padding=1)
        self.conv = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(channels)
        self.head = torch.nn.Linear(channels, classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu_(self.norm(self.conv(x)) + x)
        return self.head(x.mean([2, 3]))


class Dense(torch.nn.Module):
    """Channels put together, scaled by what the whole image says, resized, and several results by name."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(2, 3, 3, padding="same", padding_mode="reflect")
        self.second = torch.nn.Conv2d(5, 4, 1, groups=1)
        self.squeeze = torch.nn.Conv2d(4, 4, 1)
        self.scale = torch.nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("shift", torch.linspace(-1.0, 1.0, 4).reshape(4, 1, 1))

    def forward(self, x):
        x = self.second(torch.cat([x, F.elu(self.first(x))], 1))
        gate = torch.sigmoid(self.squeeze(F.adaptive_avg_pool2d(x, 1)))
        small = F.max_pool2d(x * gate * self.scale + self.shift, 2)
        return {"fine": F.interpolate(small, size=x.shape[2:], mode="bilinear"), "coarse": (small, small.flatten(1))}


class Tokens(torch.nn.Module):
    """Patches as tokens with a further token in front, attention by hand, and the first token's scores."""

    def __init__(self, features=8, heads=2):
        super().__init__()
        self.patches = torch.nn.Conv2d(2, features, 3, stride=3)
        self.first = torch.nn.Parameter(torch.randn(1, 1, features))
        self.norm = torch.nn.LayerNorm(features)
        self.qkv = torch.nn.Linear(features, 3 * features)
        self.heads, self.out = heads, torch.nn.Linear(features, features)

    def forward(self, x):
        n = x.shape[0]
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(n, -1, -1), x], 1)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.reshape(n, -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return (x + self.out(y))[:, 0]


class Line(torch.nn.Module):
    """A 1-d model: windows of a signal, and what is left of time."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv1d(2, 4, 5, padding=2), torch.nn.GroupNorm(2, 4), torch.nn.GELU(), torch.nn.AvgPool1d(2)
        )

    def forward(self, x):
        x = self.layers(x)
        return x.amax(-1), x.logsumexp(-1)


class Volume(torch.nn.Module):
    """A 3-d model with a way down and up again."""

    def __init__(self):
        super().__init__()
        self.down = torch.nn.Conv3d(1, 2, 3, stride=2, padding=1)
        self.norm = torch.nn.InstanceNorm3d(2, affine=True)
        self.up = torch.nn.ConvTranspose3d(2, 1, 2, stride=2)

    def forward(self, x):
        y = self.up(F.leaky_relu(self.norm(self.down(x)), 0.1))
        return x + y[..., : x.shape[2], : x.shape[3], : x.shape[4]]


class Tied(torch.nn.Module):
    """Two layers with the same weight."""

    def __init__(self):
        super().__init__()
        self.first, self.between, self.second = torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class Experts(torch.nn.Module):
    """Experts in one parameter for each layer, weighted by a router."""

    def __init__(self, features=4, hidden=5, experts=5):
        super().__init__()
        self.router = torch.nn.Linear(features, experts)
        self.first = torch.nn.Parameter(torch.randn(experts, features, hidden))
        self.second = torch.nn.Parameter(torch.randn(experts, hidden, features))

    def forward(self, x):
        y = torch.einsum("btd,edf->betf", x, self.first).relu()
        y = torch.einsum("betf,efd->betd", y, self.second)
        return x + torch.einsum("betd,bte->btd", y, self.router(x).softmax(-1))
