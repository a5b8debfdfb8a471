"""The format of a file's metadata, which the writer and the reader check."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdl.checkpoint.json_values import JSON, decoded, members_of
from distdl.checkpoint.stored import StoredTensor

VERSION = 1

VALUE = object()
"""In a description: a result of :func:`distdl.checkpoint.json_values.encoded`."""


@dataclass(frozen=True)
class Each:
    """In a description: an object with members of any names and the same description."""

    members: object


# A list describes lists of any length. A name that ends with a question mark may be missing.
DESCRIPTION: dict[str, object] = {
    "version": int,
    "more?": Each(VALUE),
    "complex?": [str],  # tensors whose pairs of numbers are complex numbers
    "optimizer?": {
        "groups": [{"params": [str], "options": Each(VALUE)}],
        "values": Each(Each(VALUE)),  # by parameter and key
        "unlike": [str],  # tensors whose shapes are not those of their parameters
    },
}

CHECKSUM_DIGITS = 16


def check_metadata(metadata: JSON) -> dict[str, JSON]:
    """The members of the metadata. Raises ValueError if they do not fit the description."""
    _check_value(metadata, DESCRIPTION, "the metadata")
    members = members_of(metadata)
    if members["version"] != VERSION:
        raise ValueError(f"the file is of version {members['version']}, and this release reads version {VERSION}")
    return members


def _check_value(value: JSON, description: object, where: str) -> None:
    if isinstance(description, list):
        if not isinstance(value, list):
            raise ValueError(f"{where}: {_short_json(value)} stands in place of a list")
        for number, item in enumerate(value):
            _check_value(item, description[0], f"{where}[{number}]")
    elif isinstance(description, type):
        if type(value) is not description:
            raise ValueError(f"{where}: {_short_json(value)} stands in place of a value of type {description.__name__}")
    elif description is not VALUE:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: {_short_json(value)} stands in place of an object")
        for name, member in _described_members(value, description, where):
            _check_value(value[name], member, f"{where}: {name}")


def _described_members(value: dict[str, JSON], description: object, where: str) -> Iterator[tuple[str, object]]:
    if isinstance(description, Each):
        yield from ((name, description.members) for name in value)
        return
    assert isinstance(description, dict)
    for key, member in description.items():
        name = key.removesuffix("?")
        if name in value:
            yield name, member
        elif name == key:
            raise ValueError(f"{where}: {name} is missing")


def _short_json(value: JSON) -> str:
    text = json.dumps(value)
    return text if len(text) < 40 else f"{text[:36]} ..."


def check_optimizer(saved: JSON, tensors: Sequence[StoredTensor], prefix: str) -> None:
    """Raise ValueError if states belong to no parameter of the optimizer, or values cannot be decoded.

    ``saved`` is the optimizer's member of the metadata; names of states begin with ``prefix``.
    """
    members = members_of(saved)
    groups: list[dict[str, JSON]] = members["groups"]  # type: ignore[assignment]
    parameters = {name for group in groups for name in group["params"]}  # type: ignore[union-attr]
    values = members_of(members["values"])
    for tensor in tensors:
        if tensor.name.startswith(prefix) and tensor.name.count("/") < 2:
            raise ValueError(f"the tensor {tensor.name} is no state of a parameter: {prefix}KEY/PARAMETER")
    states = [tensor.name.split("/", 2)[2] for tensor in tensors if tensor.name.startswith(prefix)]
    unknown = next((name for name in [*values, *states] if name not in parameters), None)
    if unknown is not None:
        raise ValueError(f"{unknown} has a state, and is no parameter of the optimizer in the file")
    for state in values.values():
        for value in members_of(state).values():
            decoded(value, {})
    for group in groups:
        options = members_of(group["options"])
        if "params" in options:
            raise ValueError("params is no option of a group of parameters")
        for value in options.values():
            decoded(value, {})


def checksums_in(text: str, chunks: int) -> list[int]:
    """The checksums of the chunks. Raises ValueError for another number of them."""
    if len(text) != chunks * CHECKSUM_DIGITS or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"{chunks} chunks need {chunks * CHECKSUM_DIGITS} hexadecimal digits of checksums")
    return [int(text[i : i + CHECKSUM_DIGITS], 16) for i in range(0, len(text), CHECKSUM_DIGITS)]
