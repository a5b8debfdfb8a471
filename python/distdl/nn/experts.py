"""Mixture of experts: tokens in blocks travel to experts on other ranks, and answers back."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Annotated, TypeAlias

import torch
import torch.nn.functional as F

from distdl import _core, operators
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Count, Device, Dtype, Flag, PlainNumber, must, with_options
from distdl.nn.base.precision import wide
from distdl.parameters.initial import like_linear
from distdl.parameters.layout import Layout
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import as_slices, block_at, cut
from distdl.partitions.comparison import compare
from distdl.torch_compat.modes import without_modes

__all__ = ["DistributedMixtureOfExperts"]


MakeExpert: TypeAlias = Callable[[int], torch.nn.Module]
_positive_and_finite = must(lambda value: 0 < value < math.inf, "be positive and finite")


@with_options
class DistributedMixtureOfExperts(Layer):
    r"""Sends each token to the experts that a gate chooses, and sums their answers, weighted by the gate.

    In one process (without the division if ``normalize=False``)::

        p = torch.softmax(F.linear(x, gate), -1)
        w, chosen = p.topk(top_k)
        w = w / w.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for e, expert in enumerate(experts):
            tokens, place = (chosen == e).nonzero(as_tuple=True)
            result.index_add_(0, tokens, expert(x[tokens]) * w[tokens, place, None])

    Balanced blocks of experts are on the workers of P_x. Each token travels only to the workers of its experts, and
    each answer only to the worker of the token.

    Args:
        P_x: the partition of the tokens, ``[*tokens, 1]``; any dimension but the features may be split.
        features: the size of a token.
        num_experts: the number of experts.
        make_expert: makes the expert of a number: a module without buffers that maps (n, features) to (n, features),
            token by token. Every rank makes all experts, in order, and keeps its own: a seed gives the same experts for
            every partition.
        top_k: the number of experts of a token.
        capacity_factor: None, or the most tokens of an expert, in units of an equal share of all tokens, rounded up.
            Further tokens are dropped: the last in the order of the whole input.
        normalize: whether the weights of a token are divided by their sum.
        device, dtype: of the gate.

    Shape:
        ``(*, features)`` in blocks of any sizes over P_x; the result in the same blocks.

    Attributes:
        gate: the weight of the gate (num_experts, features), which all workers use: see
            :func:`distdl.parameter_layout`.
        experts: all experts; parameters of experts on other ranks have no rows.

    Raises:
        TypeError, ValueError: on all ranks, if an option, an expert or the blocks of the input are not as described.
        Exceptions of experts, and ValueError for random numbers in experts on several workers: on all workers, in any
            call. A call with a new structure also passes each expert a token of zeros.

    Source: N. Shazeer et al., "Outrageously large neural networks: the sparsely-gated mixture-of-experts layer" (2017);
    D. Lepikhin et al., "GShard" (2020), for the capacity.
    """

    features: Count
    num_experts: Count
    make_expert: Annotated[MakeExpert, must(callable, "be a function of an expert's number", TypeError)]
    top_k: Count = 2
    capacity_factor: Annotated[PlainNumber, _positive_and_finite] | None = None
    normalize: Flag = True
    device: Device = None
    dtype: Dtype = None

    def check_options(self) -> None:
        name = "DistributedMixtureOfExperts"
        if self.top_k > self.num_experts:
            raise ValueError(f"{name}: top_k={self.top_k} of num_experts={self.num_experts}")
        x = self.grid
        self.check_shape(x.shape[-1:] == (1,), "it must be [*tokens, 1]")
        shape, axes = (self.num_experts, self.features), (None, None)
        self.declare_parameter("gate", x, shape, axes, initialize=like_linear(shape)[0])
        self._blocks = cut(self.num_experts, max(x.size, 1))
        self.experts = torch.nn.ModuleList()
        for worker, (start, stop) in enumerate(self._blocks):
            for number in range(start, stop):
                self.experts.append(self._keep_if_local(self.make_expert(number), number, worker))

    def _keep_if_local(self, expert: object, number: int, worker: int) -> torch.nn.Module:
        if not isinstance(expert, torch.nn.Module) or any(isinstance(part, Layer) for part in expert.modules()):
            raise TypeError(
                f"DistributedMixtureOfExperts: make_expert({number}) returned {type(expert).__name__}; it has to be a "
                "module of one process"
            )
        if buffers := [name for name, _ in expert.named_buffers()]:
            raise TypeError(f"DistributedMixtureOfExperts: expert {number} has buffers {buffers}, which are not kept")
        home = self.grid.related(self.grid.ranks[worker : worker + 1], (1,))
        for name, parameter in expert.named_parameters():
            layout = Layout(home, tuple(parameter.shape), (None,) * parameter.dim())
            self.layouts[f"experts.{number}.{name}"] = layout
            if not home.active:
                parameter.data = parameter.data.new_empty(layout.local_shape)
        return expert

    def prepare(self) -> None:
        x = self.grid
        self._first_call = False
        self._gather, self._gather_failures = (operators.all_gather_among(x.line(x.ranks)) for _ in range(2))
        self._exchange = _core.RowExchange("DistributedMixtureOfExperts", x.root, list(x.ranks)) if x.active else None

    def compared_each_call(self) -> str:
        return "experts in training: " + "".join("ny"[part.training] for part in self.experts.modules())

    def set_up(self) -> None:
        """Number the tokens of all workers, row-major in the whole input."""
        name = "DistributedMixtureOfExperts"
        sizes = self.blocks(self.grid)
        workers = self.structure(self.grid)
        if sum(sizes[-1]) != self.features or len({dtype for _, dtype in workers}) != 1:
            raise ValueError(
                f"{name}: the workers of P_x have inputs {workers}; the last dimension must be features="
                f"{self.features}, and all must be of one dtype"
            )
        if not workers[0][1].is_floating_point:
            raise ValueError(f"{name}: the input is of {workers[0][1]}; it must be of floating point")
        extents = [sum(along) for along in sizes[:-1]]
        whole = torch.arange(math.prod(extents), device="cpu").reshape(extents)
        boxes = (block_at(sizes[:-1], self.grid.index(worker)) for worker in range(self.grid.size))
        numbers = [whole[as_slices(box)].reshape(-1) for box in boxes]
        self._numbers = torch.cat(numbers)
        self._routes_of = [self.top_k * len(of_worker) for of_worker in numbers]
        share = self.top_k * whole.numel() / self.num_experts
        self._capacity = None if self.capacity_factor is None else math.ceil(self.capacity_factor * share)
        self._first_call = True

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        """Send this rank's tokens to their experts, and the arriving tokens through its own experts."""
        if not self.grid.active:
            return self.without_part(input)
        gate = self.parameters_by_name()["gate"]
        tokens = input.reshape(-1, self.features)
        weights, chosen = self._choose_experts(tokens, gate)
        routes = self._routes(self._gather(chosen.reshape(-1)))
        local_routes = routes[self.grid.rank]
        kept = int((local_routes < self.num_experts).sum())  # dropped tokens are sorted to the end
        order = local_routes.argsort(stable=True)[:kept]
        rows = order // self.top_k
        sent, received = self._counts(routes)
        arrived = self._send_rows(tokens.index_select(0, rows), sent, received)
        answers = self._answers(arrived, routes)
        answers = self._send_rows(answers, received, sent)
        weighted = wide(answers) * weights.reshape(-1).index_select(0, order).unsqueeze(1)
        result = torch.zeros_like(tokens, dtype=weighted.dtype).index_add(0, rows, weighted)
        return result.to(input.dtype).reshape(input.shape)

    def _choose_experts(self, tokens: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(tokens.device.type, enabled=False):
            scores = F.linear(wide(tokens), wide(gate).to(wide(tokens).dtype)).softmax(-1)
        weights, chosen = scores.topk(self.top_k, -1)
        return (weights / weights.sum(-1, keepdim=True) if self.normalize else weights), chosen

    def _routes(self, chosen: torch.Tensor) -> list[torch.Tensor]:
        """The expert of each token's choices, by worker; num_experts for choices beyond the capacity."""
        if self._capacity is not None and chosen.numel():
            numbers = self._numbers.to(chosen.device).unsqueeze(1) * self.top_k
            numbers = (numbers + torch.arange(self.top_k, device=chosen.device)).reshape(-1)
            order = (chosen * chosen.numel() + numbers).argsort()
            counts = torch.bincount(chosen, minlength=self.num_experts)
            first = (counts.cumsum(0) - counts)[chosen[order]]
            exceeds = torch.arange(len(order), device=chosen.device) - first >= self._capacity
            chosen = chosen.index_fill(0, order[exceeds], self.num_experts)
        return list(chosen.split(self._routes_of))

    def _counts(self, routes: list[torch.Tensor]) -> tuple[list[int], list[int]]:
        counts = torch.stack([torch.bincount(route, minlength=self.num_experts + 1) for route in routes]).cpu()
        start, stop = self._blocks[self.grid.rank]
        of_worker = counts[self.grid.rank]
        return [int(of_worker[a:b].sum()) for a, b in self._blocks], counts[:, start:stop].sum(1).tolist()

    def _send_rows(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        assert self._exchange is not None
        assert self.agreement is not None
        agreed = self.agreement
        return self._exchange(rows, sent, received, agreed.requires_grad, agreed.has_tangent)

    def _answers(self, arrived: torch.Tensor, routes: list[torch.Tensor]) -> torch.Tensor:
        """Outputs of the local experts. An error in any expert is raised on all workers."""
        first, self._first_call = self._first_call, False
        error, answers = None, arrived
        try:
            if first:
                self._try_experts(arrived)
            answers = self._through_experts(arrived, routes)
        except Exception as raised:
            error = raised
        failed = torch.tensor([error is not None], dtype=torch.uint8, device=arrived.device)
        if bool(self._gather_failures(failed).any()):
            name, agreement = type(self).__name__, self.agreement
            if agreement is not None:
                agreement.forget()  # the next call sets up again, on all ranks
            compare(name, f"call of {name}", self.grid.line(self.grid.ranks), error, {}, {})
        return answers

    def _try_experts(self, like: torch.Tensor) -> None:
        """Pass each local expert a token of zeros: some may receive tokens only in later calls.

        Hidden from selective checkpointing, since a recomputed call does not repeat it.
        """
        generator = generator_state(like.device)
        with torch.no_grad(), without_modes():
            for number in range(*self._blocks[self.grid.rank]):
                self._answer(number, like.new_zeros(1, self.features))
        if self.grid.size > 1 and generator != generator_state(like.device):
            raise ValueError(
                f"{type(self).__name__}: the experts draw random numbers, as dropout does in training, which would "
                "depend on the partition; use DistributedDropout on the result in place of it"
            )

    def _answer(self, number: int, part: torch.Tensor) -> torch.Tensor:
        answer = self.experts[number](part)
        if not isinstance(answer, torch.Tensor) or answer.shape != part.shape:
            shown = f"a tensor of shape {list(answer.shape)}" if isinstance(answer, torch.Tensor) else f"{answer!r}"
            raise ValueError(
                f"DistributedMixtureOfExperts: expert {number} returned {shown} for a tensor of shape "
                f"{list(part.shape)}"
            )
        return answer

    def _through_experts(self, arrived: torch.Tensor, routes: list[torch.Tensor]) -> torch.Tensor:
        """The answers of the local experts to the rows that arrived from each worker, sorted by expert there."""
        start, stop = self._blocks[self.grid.rank]
        numbers = torch.cat([route[(route >= start) & (route < stop)].sort().values for route in routes])
        order = numbers.argsort(stable=True)
        counts = torch.bincount(numbers - start, minlength=stop - start).tolist()
        parts = arrived.index_select(0, order).split(counts) if counts else ()
        answers = [arrived[:0]]
        for number, part in zip(range(start, stop), parts, strict=True):
            # An expert without tokens has a gradient of 0.
            answer = self._answer(number, part) if len(part) else part + connected_zero(self.experts[number])
            answers.append(answer.to(arrived.dtype))
        return torch.cat(answers).index_select(0, order.argsort())


def generator_state(device: torch.device) -> bytes:
    """The states of the generators of the CPU and of a device, which change with each draw."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states).numpy().tobytes()


def connected_zero(module: torch.nn.Module) -> torch.Tensor | float:
    """0, connected to all parameters of a module."""
    return functools.reduce(operator.add, map(zero_of, module.parameters()), 0.0)
