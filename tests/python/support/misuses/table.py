"""The table of misuses: for each public call good arguments, and for each argument wrong values."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

import distdl
from distdl import Partition
from support.ranks import job


@dataclass(frozen=True)
class Wrong:
    """A value that an argument must not have, and what is raised for it on every rank."""

    value: Any
    kind: type[Exception] | tuple[type[Exception], ...]
    match: str

    @property
    def name(self) -> str:
        """For the test's id."""
        return "".join(c if c.isalnum() or c in "-." else "_" for c in repr(self.value))[:24]


@dataclass
class Row:
    """A public call.

    Attributes:
        call: what is called.
        good: its arguments by name, from the partition of all ranks.
        wrong: for each argument, what must not be passed for it, on any rank.
        other: for each argument, another good value: ranks have to agree on it.
        free: arguments that are the caller's own business, or that any object may be passed for.
        alone: whether the call is this rank's own business.
    """

    call: Callable[..., Any]
    good: Callable[[Partition], dict[str, Any]]
    wrong: dict[str, list[Wrong]] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    alone: bool = False

    def parameters(self) -> list[inspect.Parameter]:
        """The parameters of the signature."""
        return list(inspect.signature(self.call).parameters.values())


def placements(row: Row, good: dict[str, Any], without: str = "") -> list[set[int]]:
    """The ranks that do it wrong: the last, the first, all. All, where a rank would not know whom to tell."""
    everyone = set(range(job.size))
    known = row.call.__self__ if isinstance(getattr(row.call, "__self__", None), Partition) else None
    partitions = [value for name, value in good.items() if name != without and isinstance(value, Partition)]
    if row.alone or not (partitions or known):
        return [everyone]
    return [{job.size - 1}, {0}, everyone]


def is_partition(name: str) -> bool:
    """By the name of an argument."""
    return name.startswith("P_")


# Wrong values, by the expected kind.


def not_a_further_partition(none: str = "") -> list[Wrong]:
    """For a partition that not every form of a layer takes.

    Args:
        none: what is said where it is missing; the layer does without it otherwise.
    """
    return [*([Wrong(None, ValueError, none)] if none else []), *not_a_partition()[1:]]


def not_a_partition() -> list[Wrong]:
    """For a partition."""
    rule = "has to be a distdl.Partition or an mpi4py"
    values = (None, 3, "P", [0], 1.5, np.ones(2), torch.ones(2), MPI.COMM_WORLD.group, {})
    return [Wrong(value, TypeError, rule) for value in values]


def not_a_tensor() -> list[Wrong]:
    """For a tensor."""
    rule = "has to be a torch.Tensor"
    return [Wrong(value, TypeError, rule) for value in (None, "x", 1.5, [1.0], np.ones(2), {})]


def not_an_int(name: str) -> list[Wrong]:
    """For a number of elements."""
    return [Wrong(v, TypeError, name) for v in ("a", 1.5, None, float("nan"), [2], np.float64(2), torch.ones(2))]


def not_positive(name: str, kind: Any = RuntimeError) -> list[Wrong]:
    """For a number of elements that is at least 1, and not without bound."""
    return [Wrong(0, kind, name), Wrong(-1, kind, name), Wrong(1 << 70, RuntimeError, name)]


def not_per_dimension(name: str, none: bool = False) -> list[Wrong]:
    """For an int, or an int for each spatial dimension."""
    wrong = [Wrong(v, TypeError, name) for v in ("a", 1.5, (1, 1.5), float("inf"), np.ones(2), {"a": 1})]
    wrong += [Wrong((1,) * 7, RuntimeError, "7 values"), Wrong((), RuntimeError, "0 values")]
    wrong += [Wrong(1 << 40, RuntimeError, name)]
    return wrong if none else [*wrong, Wrong(None, TypeError, name)]


def not_axes(name: str) -> list[Wrong]:
    """For axes of a partition of two dimensions."""
    wrong = [Wrong(v, TypeError, "axes") for v in (5, "a", [0.5], [None], [[0]])]
    return [
        *wrong,
        Wrong([2], ValueError, "not an axis"),
        Wrong([-3], ValueError, "not an axis"),
        Wrong([0, -2], ValueError, "given twice"),
        Wrong(None, ValueError, f"{name}|neither"),
    ]


def not_a_dtype() -> list[Wrong]:
    """For the dtype of parameters."""
    return [
        Wrong("float32", TypeError, "dtype"),
        Wrong(torch.int64, RuntimeError, "gradients"),
        Wrong(3, TypeError, "dtype"),
    ]


def not_a_device() -> list[Wrong]:
    """For the device of parameters."""
    return [Wrong("nowhere", RuntimeError, "device"), Wrong(1.5, (TypeError, RuntimeError), "device")]


def grid_of(P: Partition, dims: int) -> Partition:
    """All ranks, along the last of so many dimensions."""
    return P.create_cartesian_topology_partition([*[1] * (dims - 1), job.size])


def public() -> dict[str, Any]:
    """Every public callable by its name. Aliases once."""
    callables: dict[str, Any] = {}
    places = {"": distdl, "nn.": distdl.nn, "functional.": distdl.functional, "fft.": distdl.fft}
    for prefix, place in places.items():
        for name in place.__all__:
            thing = getattr(place, name)
            if callable(thing) and not any(thing is known for known in callables.values()):
                callables[prefix + name] = thing
    for module in (distdl.memory, distdl.progress, distdl.watchdog):
        for name, thing in vars(module).items():
            if (
                inspect.isfunction(thing)
                and thing.__module__ == module.__name__
                and name[0] != "_"
                and name != "install"
                and not any(thing is known for known in callables.values())
            ):
                callables[f"{module.__name__.removeprefix('distdl.')}.{name}"] = thing
    for name, thing in inspect.getmembers(Partition, inspect.isfunction):
        if not name.startswith("_"):
            callables[f"Partition.{name}"] = thing
    return callables
