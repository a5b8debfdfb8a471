"""The order of the samples in each epoch, the same on all ranks, and its state."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from distdl.partitions.comparison import agreed
from distdl.partitions.grid import Grid

_STATE_NAMES = {"samples", "shuffle", "epoch", "taken", "base", "order", "generator"}
LoaderState: TypeAlias = dict[str, int | bool | torch.Tensor | None]


@dataclass(frozen=True)
class Epoch:
    """The samples of an epoch in their order.

    Attributes:
        number: the number of the epoch, from 0 on.
        order: the numbers of all samples.
        taken: how many of them a run has taken before this one.
        base: a seed for the DataLoader's processes.
        drawn_from: the state of the generator that drew the order; None if samples are not shuffled.
    """

    number: int
    order: Sequence[int]
    taken: int = 0
    base: int = 0
    drawn_from: torch.Tensor | None = None


class SampleOrder:
    """Draws the order of the samples of each epoch as torch's DataLoader, on all ranks."""

    def __init__(self, voters: Grid, samples: int, shuffle: bool, generator: torch.Generator | None) -> None:
        self.voters = voters
        self._samples, self._shuffle, self._generator = samples, shuffle, generator
        self._next = 0  # number of the epoch
        self._resumed: Epoch | None = None  # an epoch that a run before this one has begun

    def begin(self) -> Epoch:
        """The next epoch, or the rest of the epoch of a loaded state. Collective over the ranks."""
        if self._resumed is not None:
            epoch, self._resumed = self._resumed, None
        else:
            base, drawn_from = self._draw()
            epoch = Epoch(self._next, self._permutation(drawn_from), 0, base, drawn_from)
        self._next = epoch.number + 1
        return epoch

    def _draw(self) -> tuple[int, torch.Tensor | None]:
        """A seed for the DataLoader's processes, and the state of a generator that draws the order."""
        generator = self._generator
        state = "" if generator is None else f"{zlib.crc32(generator.get_state().numpy().tobytes())}"
        with agreed("loader", self.voters, lambda: f"a generator in the state {state}" if state else "no generator"):
            pass
        # torch's DataLoader draws this number first, and then RandomSampler draws the order.
        base = int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())
        if not self._shuffle:
            return base, None
        if generator is not None:
            drawn_from = generator.get_state()
            torch.randperm(self._samples, generator=generator, device="cpu")
            return base, drawn_from
        seed = str(int(torch.empty((), dtype=torch.int64, device="cpu").random_().item()))
        return base, torch.Generator().manual_seed(int(self.voters.gather(seed.encode())[0])).get_state()

    def _permutation(self, drawn_from: torch.Tensor | None) -> Sequence[int]:
        if drawn_from is None:
            return range(self._samples)
        generator = torch.Generator()
        generator.set_state(drawn_from)
        return torch.randperm(self._samples, generator=generator, device="cpu").tolist()

    def end(self) -> None:
        """Leave the generator as RandomSampler does, which draws another order at the end of an epoch."""
        if self._shuffle and self._generator is not None:
            torch.randperm(self._samples, generator=self._generator, device="cpu")

    def _source(self) -> torch.Generator | None:
        """The generator from which further epochs are drawn."""
        return self._generator or (torch.default_generator if self._shuffle else None)

    def state(self, epoch: Epoch | None, taken: int) -> LoaderState:
        """The state in an epoch of which samples are taken; without an epoch, before the next one."""
        source = self._source()
        return {
            "samples": self._samples,
            "shuffle": self._shuffle,
            "epoch": self._next if epoch is None else epoch.number,
            "taken": taken,
            "base": None if epoch is None else epoch.base,
            "order": None if epoch is None else epoch.drawn_from,
            "generator": None if source is None else source.get_state(),
        }

    def position(self) -> tuple[Epoch | None, int]:
        """The epoch of a loaded state, and how many samples of it are taken."""
        return self._resumed, 0 if self._resumed is None else self._resumed.taken

    def load_state(self, state: Mapping[str, object]) -> None:
        """Go on from a state. Raises on all ranks if it does not fit. Collective over the ranks."""
        with agreed("load_state_dict", self.voters, lambda: f"a state with the checksum {_checksum(state)}"):
            if not isinstance(state, Mapping) or not state.keys() >= _STATE_NAMES:
                raise ValueError(f"load_state_dict: the state has to be a mapping of {sorted(_STATE_NAMES)}")
            epoch, taken, base = (state[name] for name in ("epoch", "taken", "base"))
            if not isinstance(epoch, int) or not isinstance(taken, int) or not isinstance(base, int | None):
                raise TypeError(f"load_state_dict: epoch={epoch!r}, taken={taken!r}, base={base!r}; they are integers")
            if (state["samples"], state["shuffle"]) != (self._samples, self._shuffle):
                raise ValueError(
                    f"load_state_dict: the state is of {state['samples']} samples with shuffle={state['shuffle']}; the "
                    f"loader has {self._samples} with shuffle={self._shuffle}"
                )
            drawn_from, generator = (_as_generator_state(state[name]) for name in ("order", "generator"))
        resumed = None if base is None else Epoch(epoch, self._permutation(drawn_from), taken, base, drawn_from)
        self._next, self._resumed = epoch, resumed
        source = self._source()
        if source is not None and generator is not None:
            source.set_state(generator)


def _as_generator_state(value: object) -> torch.Tensor | None:
    """The state of a generator. Raises TypeError or RuntimeError for anything else."""
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"load_state_dict: a {type(value).__name__} is in place of a generator's state")
    torch.Generator().set_state(value.cpu())
    return value.cpu()


def _checksum(state: Mapping[str, object]) -> int:
    values = [(name, v.tolist() if isinstance(v, torch.Tensor) else v) for name, v in sorted(state.items())]
    return zlib.crc32(repr(values).encode())
