"""Modules of torch, and users' modules, that work on each block by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch

from distdl.modules.graph import connected
from distdl.nn.base.split_checks import problem_of
from distdl.nn.wrapped_module import ModuleCall, WrappedModule
from distdl.partitions.comparison import compare
from distdl.partitions.construction import PartitionLike
from distdl.torch_compat.modes import without_modes
from distdl.torch_compat.trees import TreeSpec, tree_flatten, tree_leaves, tree_structure, tree_unflatten

__all__ = ["Local"]


class Local(WrappedModule):
    """Applies a module of torch to each block by itself, with parameters that the workers share.

    For modules that look across no split dimension: activations, ``torch.nn.Linear`` over whole features, recurrent
    layers with only the batch split, users' modules. Each worker of P_x calls the module with its blocks and the whole
    parameters, whose gradients are summed.

    Args:
        P_x: the partition of the first tensor of a call, with as many dimensions.
        module: any module of torch, with equal options and weights on all ranks, as from the same seed;
            :meth:`from_sequential` takes the weights of one rank. It is copied.
        outputs: the number of tensors that the module returns, or their structure if nested: ``outputs=(1, (1, 1))``
            for ``torch.nn.LSTM``. Ranks without work return tensors of zero volume in it.

    Shape:
        The first argument is a tensor in blocks of P_x, other arguments may be anything; all but tensors must be equal
        on all ranks. The result is the module's for these blocks; zero volume on all other ranks.

    Attributes:
        module: the copy. Parameters and buffers keep their names, such as ``weight`` or ``0.weight``. Each parameter is
            whole on its owner: see :func:`distdl.parameter_layout`.

    Raises:
        TypeError: on all ranks, if ``module`` is not a module, holds a layer over partitions, or is not initialized.
        ValueError: on all ranks, if P_x splits a dimension that a layer of torch.nn or a ``torch.nn.Sequential`` looks
            across (the message names the layer to use), a module of another class holds batch norms or dropout in
            training, or the module writes into a buffer, which would differ between workers.
        Exceptions of the module, on all ranks, in the first call with a new structure; RuntimeError on ranks that lack
            the exception's type.

    A user's module that calls functions such as ``torch.nn.functional.dropout`` draws the same numbers on each block,
    without a warning. Use :class:`distdl.nn.DistributedDropout`.

    Collective: constructing over P_x's parent communicator, calling over P_x.
    """

    outputs: Any

    def __init__(self, P_x: PartitionLike, module: torch.nn.Module, outputs: object = 1) -> None:
        super().__init__(locals())

    def check_options(self) -> None:
        if isinstance(self.module, torch.nn.Module):
            self._check_outputs()
        super().check_options()
        own_classes = {type(part).__module__.startswith("torch.nn.modules.") for part in self.module.modules()}
        self._may_skip_tensors = own_classes != {True} and self.grid.size > 1
        self._first_call = False

    def _check_outputs(self) -> None:
        if isinstance(self.outputs, tuple | list | dict):
            return
        try:
            count = index(self.outputs)
        except TypeError as error:
            raise TypeError(
                f"Local: outputs={self.outputs!r}; it must be a number of tensors, or a structure"
            ) from error
        if count < 1:
            raise ValueError(f"Local: outputs={count}; a module returns at least one tensor")

    def _structure(self) -> TreeSpec:
        outputs = self.outputs
        return tree_structure((1,) * outputs if isinstance(outputs, int) and outputs > 1 else outputs)

    def set_up(self) -> None:
        self.blocks(self.grid)  # raises if the blocks do not match
        self.module.training = self.training
        problem = problem_of(self.module, self.grid.shape)
        if problem:
            raise ValueError(f"Local: {problem}")
        self._first_call = True

    def compute(self, call: ModuleCall) -> object:
        args, kwargs = call
        self.module.training = self.training
        parameters = self.parameters_in_use()
        if not self.grid.active:
            problem = self._misfit(args, kwargs)
            if problem is not None:
                raise problem
            tensors = [x for x in tree_leaves(call) if isinstance(x, torch.Tensor)]
            empty = self.without_part(tensors[0]) if tensors else torch.empty(0, device="cpu")
            structure = self._structure()
            return tree_unflatten([empty] * structure.num_leaves, structure)
        first, self._first_call = self._first_call, False
        if not first:
            return self._apply_module(parameters, args, kwargs, {})
        error: Exception | None = None
        with without_modes():  # selective checkpointing must see the same in every call
            buffers = {name: buffer.clone() for name, buffer in self.named_buffers()} if self.grid.size > 1 else {}
        state = dict(buffers)
        try:
            result = self._apply_module(parameters, args, kwargs, state)
            self._check(result)
            with without_modes():
                self._check_written({name: state[name] for name in buffers})
        except Exception as raised:
            error = raised
        try:
            compare("Local", "first call of Local", self.grid.line(self.grid.ranks), error, {}, {})
        except Exception:
            assert self.agreement is not None
            self.agreement.forget()  # the next call votes again, on all ranks
            raise
        return result

    def _apply_module(
        self,
        parameters: Sequence[torch.Tensor],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        state: dict[str, torch.Tensor],
    ) -> object:
        """Call the module with the buffers in `state` in place of its own; it may replace them there."""
        if not state and self._transport.is_identity:
            result = self.module(*args, **kwargs)
        else:
            state.update(zip(self._parameter_names, parameters, strict=True))
            result = torch.func.functional_call(self.module, state, args, kwargs)
        if not self._may_skip_tensors:
            return result
        # The module may use tensors on other workers that it does not use here.
        leaves, structure = tree_flatten(result)
        return tree_unflatten(connected(leaves, [*parameters, *tree_leaves((args, kwargs))]), structure)

    def _check(self, result: object) -> None:
        leaves, structure = tree_flatten(result)
        name = type(self.module).__name__
        if structure != self._structure() or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            shown = tree_unflatten([1 if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure)
            raise ValueError(
                f"Local: {name} returns tensors in the structure {shown!r}, and outputs={self.outputs!r}; outputs "
                "must be the structure"
            )

    def _check_written(self, buffers: Mapping[str, torch.Tensor]) -> None:
        written = [name for name, buffer in self.named_buffers() if name in buffers and _differ(buffer, buffers[name])]
        if written:
            raise ValueError(
                f"Local: {type(self.module).__name__} writes into its buffer {written[0]}, which would differ among "
                f"the {self.grid.size} workers; a layer that derives from distdl.nn.Layer can make them agree"
            )


def _differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether values differ; nan equals nan."""
    return a.shape != b.shape or not bool(((a == b) | ((a != a) & (b != b))).all())
