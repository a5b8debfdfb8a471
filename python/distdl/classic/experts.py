"""Linear layers of experts, as programs written for DistDL know them: a weight for each expert, in blocks."""

from __future__ import annotations

import torch

from distdl import operators
from distdl.classic.arguments import old_arguments
from distdl.classic.keys import Passed
from distdl.classic.linear_forms import between, other_than
from distdl.classic.ordered import OrderedLayer, order_of_parts
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Device, Dtype, HasBias, Natural, common_options, option
from distdl.nn.linear.features import check_dtypes
from distdl.operators.dispatch import Operator
from distdl.parameters.initial import Initializer, like_linear
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import block_intervals, cut
from distdl.partitions.construction import PartitionLike

_EXPERTS, _FEATURES = 0, 2  # dimensions of the input, and of the partition


@common_options
class _ExpertOptions(OrderedLayer):
    num_experts: Natural
    in_features: Natural
    out_features: Natural
    bias: HasBias = option(default=True)
    device: Device = None
    dtype: Dtype = None


class _Experts(_ExpertOptions):
    """Applies to the tokens of each expert its own linear layer.

    ``weight`` is (num_experts, out_features, in_features) and ``bias`` (num_experts, out_features), in balanced blocks.
    Tokens that come in other blocks of experts are brought to these, and results back.
    """

    outputs_dim = 1
    geglu: bool
    _ways: tuple[Operator, Operator] | None = None

    def construct(self, P_expert_emb: PartitionLike, *args: Passed, **options: Passed) -> None:
        super().construct(P_x=P_expert_emb, **{"geglu": False, **options})
        self.__dict__["P_expert_emb"] = self.P_x

    def construct_ours(self, **options: object) -> None:
        Layer.__init__(self, options)

    def order(self) -> torch.Tensor | None:
        if not self.geglu:
            return None
        workers = self.grid.shape[_FEATURES] if self.grid.dim == 3 else 1
        return order_of_parts(type(self).__name__, [(self.out_features // 2, 1)] * 2, workers)

    def check_options(self) -> None:
        if self.grid.known and self.grid.dim != 3:
            raise ValueError(
                f"{type(self).__name__}: P_expert_emb has shape {list(self.grid.shape)}; it must be [experts, tokens, "
                "features]"
            )
        of_weight, of_bias = like_linear((self.out_features, self.in_features))
        self._declare_blocks((self.num_experts, self.out_features, self.in_features), of_weight, of_bias)

    def _declare_blocks(self, shape: tuple[int, int, int], of_weight: Initializer, of_bias: Initializer) -> None:
        """Declare weight and bias, in blocks over P_expert_emb."""
        raise NotImplementedError

    def set_up(self) -> None:
        self.check_balanced(_FEATURES, self.in_features, "in_features")
        self._ways = self._ways_of(self.blocks(self.grid))
        check_dtypes(self, self.weight, self.bias, input=self.structure(self.grid)[0][1])

    def _ways_of(self, sizes: list[list[int]]) -> tuple[Operator, Operator] | None:
        """The operators from these blocks to those with balanced experts, and back; None where none have to move."""
        experts, tokens, features = sizes
        balanced = cut(self.num_experts, len(experts))
        dropping = [self.num_experts // len(experts)] * len(experts)  # what is left of a division is not used
        if block_intervals(experts) == balanced or experts == dropping:
            return None
        if sum(experts) != self.num_experts:
            raise ValueError(
                f"{type(self).__name__}: the input comes in blocks of {experts} experts; these must be as many as "
                f"num_experts={self.num_experts} together, or {dropping[0]} on each worker"
            )
        workers = self.grid.shape[_FEATURES]
        to = [balanced, block_intervals(tokens), block_intervals(features)]
        back = [block_intervals(experts), block_intervals(tokens), cut(self.out_features, workers)]
        name = type(self).__name__
        return tuple(operators.interval_exchange(name, self.grid, self.grid, blocks) for blocks in (to, back))  # type: ignore[return-value]

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if self._ways is None or not self.grid.active:
            return self.on_balanced(input)
        to, back = self._ways
        return back(self.on_balanced(to(input)))

    def on_balanced(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer to a block of this worker's experts."""
        raise NotImplementedError

    def _terms(self, x: torch.Tensor) -> torch.Tensor:
        """x times the weight of each expert, and the bias where this worker adds it."""
        weight, bias = (*(parameter[: len(x)] for parameter in self.parameters_in_use()), None)[:2]
        assert weight is not None
        y = torch.matmul(x, weight.mT)
        if bias is None:
            return y
        return y + (bias.unsqueeze(1) if len(bias) or not len(weight) else zero_of(bias))


@old_arguments(
    "P_expert_emb num_experts in_features out_features bias", P_weight=None, P_bias=None, P_expert_seq=None, geglu=False
)
class DistributedExpertAllGather(_Experts):
    """Gathers the features of the tokens, and computes this worker's features of the result.

    Args:
        P_expert_emb: the partition of the layer: ``[experts, tokens, features]``.
        num_experts: how many experts there are; each of them lives on the workers of its place.
        in_features, out_features, bias: of each expert, as in ``torch.nn.Linear``.
        P_weight, P_bias: taken, and left alone: parameters live on P_expert_emb.
        P_expert_seq: the partition of the input, P_expert_emb by default.
        geglu: the outputs are two halves, and each worker has its part of both.

    Shape:
        ``(num_experts, tokens, in_features)`` in blocks, of which those of the features are balanced; the result
        ``(num_experts, tokens, out_features)`` likewise. Result [e] is that of expert e. Where num_experts does not
        divide, each worker may also have ``num_experts // p`` of them, for the first of its own experts.

    Raises:
        ValueError: on all ranks, if the input is in no such blocks.
    """

    def construct(self, P_expert_emb: PartitionLike, P_expert_seq: PartitionLike | None, **options: object) -> None:
        super().construct(P_expert_emb=P_expert_emb, **options)
        self._from_input = between(other_than(self, "P_expert_seq", P_expert_seq), P_expert_emb)

    def _declare_blocks(self, shape: tuple[int, int, int], of_weight: Initializer, of_bias: Initializer) -> None:
        self.declare_parameter("weight", self.grid, shape, (_EXPERTS, _FEATURES, None), initialize=of_weight)
        axes, exists = (_EXPERTS, _FEATURES), self.passed["bias"]
        self.declare_parameter("bias", self.grid, shape[:2], axes, initialize=of_bias, exists=exists)

    def prepare(self) -> None:
        self._gather = operators.all_gather(self.grid, [_FEATURES])

    def on_balanced(self, input: torch.Tensor) -> torch.Tensor:
        x = self._gather(input)
        return self._terms(x) if self.grid.active else self.without_part(x)

    def forward(self, *args: object, **kwargs: object) -> object:
        if self._from_input is not None and args:
            args = (self._from_input(args[0]), *args[1:])
        return super().forward(*args, **kwargs)


@old_arguments(
    "P_expert_emb num_experts in_features out_features bias",
    P_store_bias=None,
    P_apply_bias=None,
    P_weight=None,
    P_expert_seq=None,
)
class DistributedExpertReduceScatter(_Experts):
    """Applies this worker's features of the tokens, and sums: each worker receives its features of the result.

    Args:
        P_expert_emb, num_experts, in_features, out_features, bias: as in :class:`DistributedExpertAllGather`.
        P_store_bias, P_apply_bias, P_weight: taken, and left alone: parameters live on P_expert_emb.
        P_expert_seq: the partition of the result, P_expert_emb by default.
    """

    def construct(self, P_expert_emb: PartitionLike, P_expert_seq: PartitionLike | None, **options: object) -> None:
        super().construct(P_expert_emb=P_expert_emb, **options)
        self._to_result = between(P_expert_emb, other_than(self, "P_expert_seq", P_expert_seq))

    def _declare_blocks(self, shape: tuple[int, int, int], of_weight: Initializer, of_bias: Initializer) -> None:
        axes = (_EXPERTS, None, _FEATURES)
        self.declare_parameter("weight", self.grid, shape, axes, initialize=of_weight)
        has_bias = self.passed["bias"]
        self.declare_parameter(
            "bias", self.grid, shape[:2], axes[:2], first_of=(_FEATURES,), initialize=of_bias, exists=has_bias
        )

    def prepare(self) -> None:
        self._scatter = operators.reduce_scatter(self.grid, [_FEATURES])

    def on_balanced(self, input: torch.Tensor) -> torch.Tensor:
        y = self._terms(input) if self.grid.active else self.without_part(input)
        return self._scatter(y)

    def forward(self, *args: object, **kwargs: object) -> object:
        result = super().forward(*args, **kwargs)
        return result if self._to_result is None else self._to_result(result)
