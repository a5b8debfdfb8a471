"""Functions of each element by itself."""

import torch
import torch.nn.functional as F

from support.rules.functions import IMAGE
from support.splitting import numbers

ELEMENTS = {
    "isclose": (lambda x: torch.isclose(x, x.round(), atol=0.2), IMAGE),
    "threshold in place": (lambda x: F.threshold(x * 2, 0.1, 20.0, inplace=True), IMAGE),
    "erfinv": (lambda x: torch.erfinv(x.tanh()), IMAGE),
    "threshold": (lambda x: F.threshold(x, 0.1, 20.0), IMAGE),
    "functions of torch.special": (lambda x: torch.special.entr(x.exp()) + torch.special.ndtr(x), IMAGE),
    "xlog1py": (lambda x: torch.special.xlog1py(x[:1], x.exp()), IMAGE),
    "polygamma": (lambda x: torch.polygamma(1, x.exp()), IMAGE),
    "igamma": (lambda x: torch.igamma(x.detach().exp(), x[:, :1].exp()), IMAGE),
    "heaviside": (lambda x: torch.heaviside(x.detach(), x[:, :1].detach()), IMAGE),
    "shifts": (lambda x: ((x * 9).int() << 2) >> 1, IMAGE),
    "frexp": (lambda x: torch.frexp(x), IMAGE),
    "isin": (lambda x: torch.isin(x.round(), torch.tensor([0.0, 1.0], dtype=torch.float64)), IMAGE),
    "bucketize": (lambda x: torch.bucketize(x, numbers(9).sort().values, right=True), IMAGE),
    "searchsorted": (lambda x: torch.searchsorted(numbers(9).sort().values, x), IMAGE),
    "searchsorted of rows": (lambda x: torch.searchsorted(x.sort().values, x * 0.9, side="right"), IMAGE),
}
