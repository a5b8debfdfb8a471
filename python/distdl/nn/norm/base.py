"""The common part of normalization layers: parameters, dtypes, and running statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.modules.graph import connect_to, empty_result
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Device, Dtype, Float, HasBias, Natural, option, with_options
from distdl.nn.norm.moments import SharedMoments
from distdl.nn.windows.blocks import naming_layer

Normalized: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class NormLayer(Layer):
    """A layer that normalizes groups of elements, and then applies weight and bias.

    Workers with parts of the same groups exchange their moments. If no group is on several workers, each calls
    torch.nn's function.
    """

    def declare_affine(self, shape: Sequence[int], axes: Sequence[int | None], weight: bool, bias: bool) -> None:
        init = torch.nn.init
        self.declare_parameter("weight", self.grid, shape, axes, initialize=init.ones_, exists=weight)
        self.declare_parameter("bias", self.grid, shape, axes, initialize=init.zeros_, exists=weight and bias)

    def compared_each_call(self) -> str:
        """The mode: ranks in different modes would wait for each other."""
        return "in training" if self.training else "in evaluation"

    def check_dtypes(self, sample: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Raise torch.nn's errors for the input's dtype and the options on all ranks. For :meth:`set_up`.

        Args:
            sample: calls torch.nn's function on elements of one channel, with weight and bias of one element.
        """
        dtypes = [dtype for _, dtype in self.structure(self.grid)]
        for worker, dtype in enumerate(dtypes):
            if dtype != dtypes[0]:
                raise ValueError(
                    f"{type(self).__name__}: worker {worker} of P_x has an input of {dtype}, worker 0 one of "
                    f"{dtypes[0]}; all workers must have the same dtype"
                )
        self._sample = sample
        self._result_dtypes: dict[str, torch.dtype] = {}
        with naming_layer(type(self).__name__), torch.no_grad():
            sample(torch.zeros((), dtype=dtypes[0], device="cpu"))

    def result_dtype(self, input: torch.Tensor) -> torch.dtype:
        """The dtype of torch.nn's result for this input, also under autocast."""
        kind = input.device.type
        if kind not in self._result_dtypes:
            with torch.no_grad():
                self._result_dtypes[kind] = self._sample(input.new_zeros(())).dtype
        return self._result_dtypes[kind]

    def as_result(self, y: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        """The result in torch.nn's dtype.

        As in torch.nn, the backward pass raises if the input was written after the call.
        """
        result = y.to(self.result_dtype(input))
        _core.check_input_unmodified(type(self).__name__, input, result)
        return result

    def normalized(self, input: torch.Tensor, shared: SharedMoments, beyond: float) -> Normalized:
        """A block, normalized by moments that workers share, with weight and bias of its channels.

        Args:
            beyond: in place of a variance beyond the range of single or double precision. With infinity the result is
                0, as in torch's batch and instance normalization. torch's layer and group normalization give nan or 0,
                depending on the order of elements: nan shows the overflow.

        Returns:
            The result, and for each group the mean and the sum of squared deviations from it, in double precision.
        """
        arrive = self.start_parameters()
        x, message = _core.block_moments(input, shared.groups)
        messages = shared.gather(message)
        weight, bias = self.named(arrive())
        dtype = self.result_dtype(input)
        y, mean, squares = _core.normalize_block(
            x, messages, shared.groups, weight, bias, float(self.eps), beyond, dtype
        )
        _core.check_input_unmodified(type(self).__name__, input, y)
        return y, mean, squares

    def with_samples(
        self, function: Callable[..., torch.Tensor], x: torch.Tensor, names: Sequence[str], **options: object
    ) -> torch.Tensor:
        values = {name: getattr(self, name) for name in names}
        samples = {
            name: None if value is None else torch.ones(1, dtype=value.dtype, device=x.device)
            for name, value in values.items()
        }
        return function(x, **samples, **options)

    def named(self, parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        named = dict(zip(self._parameter_names, parameters, strict=True))
        return named.get("weight"), named.get("bias")

    def on_empty(self, input: torch.Tensor) -> torch.Tensor:
        """The result for an empty block if each group is on one worker.

        Only if all workers with these parameters have no elements, or torch's function reaches the weight only in
        second derivatives: second derivatives of layer and group normalization go through the bias in the graph.
        """
        parameters = self.parameters_in_use()
        return self.as_result(connect_to(input, *parameters) if parameters else empty_result(input), input)


def with_plain_gradient(y: torch.Tensor) -> torch.Tensor:
    """A result of torch's batch or instance norm, whose gradient arrives with plain strides.

    Their CPU backward passes misread other strides, e.g. of a transposition after the norm if the batch or an extent is
    1. A block may have such a size even if the whole tensor has not.
    """
    return y.flatten().view(y.shape) if y.requires_grad and y.is_contiguous() else y


_CHANNEL_TENSORS = ("running_mean", "running_var", "weight", "bias")


@with_options
class ChannelNorm(NormLayer):
    """A layer with weight, bias and running statistics for each channel: batch and instance normalization."""

    dims: ClassVar[int | None] = None  # spatial dimensions; None for any number
    num_features: Natural
    eps: Float = 1e-5
    momentum: Float | None = 0.1
    affine: bool = True
    track_running_stats: bool = True
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    bias: HasBias = option(default=True)

    def check_options(self) -> None:
        self.check_partition()
        self._channels = self.channel_axis()
        shape, axes = (self.num_features,), (self._channels,)
        self.declare_affine(shape, axes, bool(self.affine), bool(self.passed["bias"]))
        if not self.track_running_stats:
            for buffer in ("running_mean", "running_var", "num_batches_tracked"):
                self.register_buffer(buffer, None)
            return
        device, dtype = (self.passed[key] for key in ("device", "dtype"))
        for buffer, initialize in (("running_mean", torch.nn.init.zeros_), ("running_var", torch.nn.init.ones_)):
            self.declare_buffer(buffer, self.grid, shape, axes, initialize=initialize, dtype=dtype, device=device)
        self.declare_buffer(
            "num_batches_tracked", self.grid, (), (), initialize=torch.Tensor.zero_, dtype=torch.long, device=device
        )

    def check_partition(self) -> None:
        raise NotImplementedError

    def channel_axis(self) -> int:
        return 1

    def check_channels(self) -> list[list[int]]:
        """Check that the input's channels match parameters and buffers; the sizes of its blocks. For :meth:`set_up`."""
        sizes = self.blocks(self.grid)
        if self.layouts:
            self.check_balanced(self._channels, self.num_features, "num_features")
        return sizes

    @property
    def uses_statistics_of_input(self) -> bool:
        """Whether the input is normalized by its own moments, not by running statistics."""
        raise NotImplementedError

    @property
    def running(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return self.running_mean, self.running_var

    def sampled(self, function: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        with_options = functools.partial(function, momentum=0.0, eps=self.eps)
        training = "training" if function is F.batch_norm else "use_input_stats"
        return self.with_samples(with_options, x, _CHANNEL_TENSORS, **{training: self.uses_statistics_of_input})

    def track(self, mean: torch.Tensor, squares: torch.Tensor, freedom: float, momentum: float) -> None:
        """Let the running statistics follow these and squares / freedom."""
        running_mean, running_var = self.running
        assert running_mean is not None
        assert running_var is not None
        _core.follow(running_mean, mean, 1.0, momentum)
        _core.follow(running_var, squares, freedom, momentum)

    def reset_running_stats(self) -> None:
        """Reset the running statistics, as in torch.nn. Not collective."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        options = super().options_of(module)
        running = getattr(module, "running_mean", None)
        if isinstance(running, torch.Tensor):  # the dtype if there are no parameters
            options["dtype"] = running.dtype
            options.setdefault("device", None if running.device.type in ("cpu", "meta") else running.device)
        return options
