"""The 1,797 handwritten digits of scikit-learn, as 28 x 28 images on rank 0."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

import distdl

TRAINING, HELD_OUT = 1437, 360  # four fifths to train with


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 28, 28) and labels (n,). On a rank without data, both are zero-volume tensors (n, 0).

    Both can be indexed along the first dimension to get a batch, so the same program runs on every rank.
    """

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return self.images.shape[0]

    def batches(self, size: int, shuffle: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All digits once, in random order; the last batch may be smaller."""
        for indices in torch.randperm(len(self), generator=shuffle).split(size):
            yield self.images[indices], self.labels[indices]


def load(dtype: torch.dtype) -> tuple[Digits, Digits]:
    """The digits for training and the held-out digits, the same ones in every run."""
    from sklearn.datasets import load_digits  # here, because the other ranks need no data

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(dtype).unsqueeze(1) / 16  # 8 x 8, grey values from 0 to 1
    images = (images - 0.305) / 0.376  # mean 0, standard deviation 1
    images = torch.nn.functional.interpolate(images, size=(28, 28), mode="bilinear")
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    training, held_out = order[:TRAINING], order[TRAINING:]
    return Digits(images[training], labels[training]), Digits(images[held_out], labels[held_out])


def absent(dtype: torch.dtype) -> tuple[Digits, Digits]:
    """Zero-volume tensors in place of the digits, for a rank that does not have them."""
    return tuple(
        Digits(distdl.zero_volume_tensor(n, dtype=dtype), distdl.zero_volume_tensor(n, dtype=torch.int64))
        for n in (TRAINING, HELD_OUT)
    )
