"""Normalization: layers of torch.nn, and functions that do the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Run, Value
from distdl.models.operations.operation import BoxFunction, NoRuleError, Operation, Sharded, Workers
from distdl.models.operations.table import argument, bound, local, rule_for, same, through_layer, whole
from distdl.models.rules.applied_layer import layer_operation
from distdl.nn.base.by_dimensions import space_of
from distdl.torch_compat.layers import AnyBatchNorm, AnyInstanceNorm


@rule_for("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "InstanceNorm1d", "InstanceNorm2d",
          "InstanceNorm3d", "GroupNorm", "LocalResponseNorm")  # fmt: skip
def norm(node: Node) -> Operation:
    """Any dimension but channels."""
    n = len(node.inputs[0].shape)
    space = space_of(node.module) if isinstance(node.module, AnyInstanceNorm) else None
    channels = 1 if space is None else n - space - 1
    specs = [same(n, but=[channels]), *map(whole, node.parameters.values())]
    operation = layer_operation(node, node.inputs[0].shape, specs, [channels])
    return replace(operation, box=_with_statistics(node)) if isinstance(node.module, AnyBatchNorm) else operation


def _with_statistics(node: Node) -> BoxFunction | None:
    """A batch norm by running statistics; None if it takes those of its input."""
    module, names = node.module, (*node.parameters, "running_mean", "running_var")
    if module.training or "running_mean" not in node.buffers:
        return None

    def apply(x: torch.Tensor, *tensors: torch.Tensor) -> object:
        return F.batch_norm(x, **dict(zip(names, tensors, strict=True)), eps=module.eps)

    return BoxFunction(apply, buffers=names[-2:])


@rule_for("LayerNorm", "RMSNorm", "layer_norm", "rms_norm",
          takes="input normalized_shape weight bias eps cudnn_enable")  # fmt: skip
def layer_norm(node: Node) -> Operation:
    """Any dimension but the normalized dimensions."""
    x = node.inputs[0]
    n = len(x.shape)
    is_layer = isinstance(node.target, torch.nn.Module)
    normalized_shape = node.module.normalized_shape if is_layer else argument(node, 1, "normalized_shape")
    normalized = range(n - len(normalized_shape), n)
    specs = [same(n, but=normalized), *map(whole, node.inputs[1:])]
    run: Run | None = None
    if is_layer:
        module, names = node.module, list(node.parameters)
        function: Run = F.layer_norm if node.key == "LayerNorm" else F.rms_norm

        def apply(x: torch.Tensor, *parameters: torch.Tensor) -> object:
            return function(x, module.normalized_shape, **dict(zip(names, parameters, strict=True)), eps=module.eps)

        run = apply
    return local(node, specs, normalized, run)


def _with_one_parameter(node: Node, x: Value, name: str) -> Operation:
    """A norm with either a weight or a bias, which is applied to the result of the norm without."""
    if node.inputs[0] is not x:
        raise NoRuleError(f"{node.key} with arguments by name in another order")
    options = {key: value for key, value in bound(node).items() if key not in ("input", name)}
    operation = functional_norm(replace(node, args=(x,), kwargs=options))
    shape = [-1 if d == 1 else 1 for d in range(len(x.shape))]
    combine: Run = torch.mul if name == "weight" else torch.add

    def make(workers: Workers | None) -> Run:
        normalized = operation.make(workers)
        return lambda x, parameter: combine(normalized(x), parameter.reshape(shape))

    placements = operation.placements or (lambda workers: workers.blocks)
    return replace(operation, input_specs=(*operation.input_specs, (None,)), make=make, placements=placements)


@rule_for("batch_norm", "instance_norm", "group_norm", "local_response_norm",
          takes="input running_mean running_var weight bias training use_input_stats momentum eps num_groups size "
                "alpha beta k cudnn_enabled")  # fmt: skip
def functional_norm(node: Node) -> Operation:
    """The rule of the layers, with parameters as arguments. With statistics as arguments, any dimension."""
    options = bound(node)
    x = options.pop("input")
    tensors = {name: options.pop(name, None) for name in ("running_mean", "running_var", "weight", "bias")}
    of_input = options.pop("use_input_stats" if node.key == "instance_norm" else "training", True)
    if not of_input:
        return local(node, [same(len(x.shape)), *[(Sharded(1),) for _ in node.inputs[1:]]])
    if tensors["running_mean"] is not None:
        raise NoRuleError(f"{node.key} that writes running statistics as no layer of torch.nn does")
    parameters = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if len(parameters) == 1:
        return _with_one_parameter(node, x, *parameters)
    make: Callable[..., torch.nn.Module]
    if node.key == "local_response_norm":
        return through_layer(node, torch.nn.LocalResponseNorm(**options))
    if node.key == "group_norm":
        make = functools.partial(torch.nn.GroupNorm, options["num_groups"], x.shape[1])
        options_of_kind: dict[str, object] = {}
    else:
        space = max(1, len(x.shape) - 2)
        if space > 3:
            raise NoRuleError(f"{node.key} of {len(x.shape)} dimensions")
        kind = "BatchNorm" if node.key == "batch_norm" else "InstanceNorm"
        make = functools.partial(getattr(torch.nn, f"{kind}{space}d"), x.shape[1])
        options_of_kind = {"track_running_stats": False}
    module = make(affine=bool(parameters), eps=options["eps"], device="meta", dtype=x.dtype, **options_of_kind)
    return through_layer(node, module, parameters)
