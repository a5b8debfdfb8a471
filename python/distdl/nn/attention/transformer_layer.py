"""The common part of encoder and decoder layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from typing import Annotated, ClassVar, TypeAlias

import torch
import torch.nn.functional as F

from distdl.nn.attention.kernels.dropout import LayerWithDropout, Method
from distdl.nn.attention.projections import Parameters, ProjectedAttention
from distdl.nn.attention.tokens import check_partition
from distdl.nn.base.option_types import (
    Count,
    Device,
    Dtype,
    HasBias,
    PlainNumber,
    Probability,
    named,
    option,
    with_options,
)
from distdl.nn.base.options import check_choice
from distdl.parameters.initial import like_linear
from distdl.torch_compat.layers import AnyDropout

Activation: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

_ACTIVATIONS: Mapping[str, Activation] = {"relu": F.relu, "gelu": F.gelu}


def display_name(function: object) -> str:
    """The name of a function or module, the same on all ranks."""
    return function if isinstance(function, str) else getattr(function, "__qualname__", "") or repr(function)


def _is_random(activation: object) -> bool:
    random = (AnyDropout, torch.nn.RReLU)
    if isinstance(activation, torch.nn.Module):
        return any(isinstance(part, random) for part in activation.modules())
    return activation is F.dropout


def _activation(layer: str, value: object, name: str) -> object:
    if isinstance(value, str):
        check_choice(layer, name, value, _ACTIVATIONS)
    elif not callable(value) or list(getattr(value, "parameters", list)()):
        raise TypeError(f"{layer}: {name}={value!r}; it has to be a function without parameters")
    if _is_random(value):
        raise TypeError(f"{layer}: {name}={value!r}; it must not draw random numbers")
    return value


@with_options
class TransformerLayer(LayerWithDropout):
    """The common part of encoder and decoder layers: attention, a feedforward network, and norms.

    Attributes:
        attentions: the names of its attentions, in order.
    """

    d_model: Count
    nhead: Count
    dim_feedforward: Count = 2048
    dropout: Probability = 0.1
    activation: Annotated[str | Activation, named(_activation)] = F.relu
    layer_norm_eps: PlainNumber = 1e-5
    batch_first: bool = False
    norm_first: bool = False
    bias: HasBias = option(default=True)
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    method: Method = None
    attentions: ClassVar[tuple[str, ...]]

    def check_options(self) -> None:
        name, bias = type(self).__name__, bool(self.passed["bias"])
        check_partition(self)
        if self.d_model % self.nhead:
            raise ValueError(f"{name}: d_model={self.d_model} is not a multiple of nhead={self.nhead}")
        self._projected = [
            ProjectedAttention(
                self,
                f"{attention}.",
                self.d_model,
                self.nhead,
                bias=bias,
                batch_first=bool(self.batch_first),
                method=self.method,
            )
            for attention in self.attentions
        ]
        self._declare_linear("linear1", self.d_model, self.dim_feedforward, bias)
        self._declare_linear("linear2", self.dim_feedforward, self.d_model, bias)
        for i in range(len(self.attentions) + 1):
            self._declare_norm(f"norm{i + 1}", bias)

    def _declare_linear(self, name: str, inputs: int, outputs: int, bias: bool) -> None:
        of_weight, of_bias = like_linear((outputs, inputs))
        self.declare_parameter(f"{name}.weight", self.grid, (outputs, inputs), (None, None), initialize=of_weight)
        if bias:
            self.declare_parameter(f"{name}.bias", self.grid, (outputs,), (None,), initialize=of_bias)

    def _declare_norm(self, name: str, bias: bool) -> None:
        shape = (self.d_model,)
        self.declare_parameter(f"{name}.weight", self.grid, shape, (None,), initialize=torch.nn.init.ones_)
        if bias:
            self.declare_parameter(f"{name}.bias", self.grid, shape, (None,), initialize=torch.nn.init.zeros_)

    def options_to_compare(self) -> dict[str, object]:
        return {"activation": display_name(self.activation)}

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        attention, linear = module.self_attn, module.linear1
        return {
            **super().options_of(module),
            "d_model": attention.embed_dim,
            "nhead": attention.num_heads,
            "dim_feedforward": linear.out_features,
            "dropout": module.dropout.p,
            "layer_norm_eps": module.norm1.eps,
            "batch_first": attention.batch_first,
            "bias": linear.bias is not None,
        }

    @classmethod
    def _unfit(cls, module: object) -> TypeError | None:
        problem = super()._unfit(module)
        if problem is not None:
            return problem
        assert isinstance(module, torch.nn.Module)
        for values in cls._shared_options(module):
            (first, expected), *others = values.items()
            for name, value in others:
                if value != expected:
                    return TypeError(
                        f"{cls.__name__}: from_sequential was passed a {type(module).__name__} with {first}={expected} "
                        f"and {name}={value}; this layer has one value for both"
                    )
        return None

    @classmethod
    def _shared_options(cls, module: torch.nn.Module) -> list[dict[str, object]]:
        """Options that a layer of torch.nn has in several places, which must be equal."""
        children = dict(module.named_children())
        drops = {name: layer for name, layer in children.items() if name.startswith("dropout")}
        attentions = {name: children[name] for name in cls.attentions}
        norms = {name: layer for name, layer in children.items() if name.startswith("norm") and name[4:].isdigit()}
        probabilities = {f"{name}.p": getattr(layer, "p", None) for name, layer in drops.items()}
        probabilities |= {f"{name}.dropout": layer.dropout for name, layer in attentions.items()}
        shared: list[dict[str, object]] = [
            probabilities,
            {f"type({name})": type(layer).__name__ for name, layer in norms.items()},
            {f"{name}.eps": getattr(layer, "eps", None) for name, layer in norms.items()},
            {f"{name}.num_heads": layer.num_heads for name, layer in attentions.items()},
            {f"{name}.batch_first": layer.batch_first for name, layer in attentions.items()},
        ]
        if any(probabilities.values()):
            modes = {f"{name}.training": layer.training for name, layer in (drops | attentions).items()}
            shared.append({"training": module.training, **modes})
        return shared

    # The parts of a call

    def norm(self, number: int, x: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        weight, bias = parameters[f"norm{number}.weight"], parameters.get(f"norm{number}.bias")
        return F.layer_norm(x, (self.d_model,), weight, bias, self.layer_norm_eps)

    def attention(
        self,
        number: int,
        x: torch.Tensor,
        memory: torch.Tensor,
        parameters: Parameters,
        mask: torch.Tensor | None,
        padding: torch.Tensor | None,
    ) -> torch.Tensor:
        dropout = self.dropout_mask(self.dropout, 2 * number, x)
        y, _ = self._projected[number](
            parameters, x, memory, memory, padding, mask, dropout,
            differentiated=self.is_differentiated, has_tangent=self.has_tangent,
        )  # fmt: skip
        return self.drop(y, self.dropout, 2 * number + 1)

    def feed_forward(self, x: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        activation = _ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
        y = activation(F.linear(x, parameters["linear1.weight"], parameters.get("linear1.bias")))
        y = self.drop(y, self.dropout, 4)
        y = F.linear(y, parameters["linear2.weight"], parameters.get("linear2.bias"))
        return self.drop(y, self.dropout, 5)

    def add_residual(
        self, number: int, x: torch.Tensor, parameters: Parameters, part: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        if self.norm_first:
            return x + part(self.norm(number, x, parameters))
        return self.norm(number, x + part(x), parameters)
