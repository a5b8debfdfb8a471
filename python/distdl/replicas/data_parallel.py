"""A model of which there are copies on disjoint ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch.utils._pytree import tree_leaves

from distdl import _core, operators
from distdl.collective.comparison import agreed
from distdl.collective.construction import constructing, constructor
from distdl.operators.dispatch import Operator
from distdl.partition import Partition
from distdl.replicas.agreement import Step, agree, begin_pass, end_pass
from distdl.replicas.buckets import Bucket, GradientSums, bucketed
from distdl.replicas.spanning import spanning_layers

Count = Callable[..., float]


def samples_of(*args: object, **kwargs: object) -> float:
    """The extent of the first dimension of the first tensor among the arguments; 0 without one."""
    tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.dim() > 0)
    return next((float(one.shape[0]) for one in tensors), 0.0)


class DataParallel(torch.nn.Module):
    """Copies of a model, each on its own partition, that train together on different samples.

    After ``loss.backward()`` each replica has the gradients of the loss of all samples, as if they had been one batch.
    They are summed in buckets, while the backward pass computes further gradients. So all replicas take the same steps,
    and their parameters stay equal to the last bit.

    Args:
        module: this rank's part of its replica: a model on a partition of the ranks of one replica, or any model of
            torch if a replica is one rank. Parameters and buffers become those of replica 0.
        P_replicas: the ranks of all replicas. Its first dimension counts the replicas, its further dimensions the
            workers of each. ``P_replicas.create_cartesian_subtopology_partition([False, True])`` is then the partition
            of this rank's replica, if P_replicas has two dimensions.
        reduction: what the loss does over the samples: "mean" or "sum". If it is "mean", a replica counts by the number
            of its samples, so that batches may be of different sizes.
        samples: the number by which a replica counts: a function of the arguments of a call. By default it is the
            extent of the first dimension of the first tensor. It is added up over the workers of a replica.
        broadcast_buffers: whether replicas receive the buffers of replica 0 before each training step, as in
            ``torch.nn.parallel.DistributedDataParallel``. If not, each replica keeps its own running statistics.
        bucket_cap_mb: the size of a bucket in MiB. By default there are about five buckets, of 1 to 25 MiB.

    Raises:
        ValueError: on all ranks, if they pass different options, or models with different parameters; or if a layer
            over ranks of several replicas has parameters that not each of them keeps.
        TypeError: on all ranks, if P_replicas is not a partition, or ``module`` is not a ``torch.nn.Module``.

    Constructing is collective over P_replicas, and so are calls and backward passes in training mode while gradients
    are recorded. In evaluation and under ``torch.no_grad`` each replica calls its model by itself. A backward pass
    counts samples as the last call in training mode did.

    The model may have layers over ranks of several replicas, such as ``DistributedBatchNorm2d(P, ...)`` where P has all
    replicas along the batch: they see the samples of all. All replicas then call the model together, in evaluation too.
    Construct such layers under ``parameter_layout("replicated")`` if they have parameters. With ``reduction="mean"``,
    all replicas need equally many samples in each step, and a step raises ValueError on all ranks otherwise.

    Parameters that no replica uses in a pass keep no gradient; a parameter that some replicas use gets one on all.
    A frozen parameter takes no part; ``requires_grad`` may change between steps, on all ranks.

    Attributes:
        module: the model.
        replicas, replica: the number of replicas, and this rank's.

    Source: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (2020).

    Example:
        >>> P_replicas = P_world.create_cartesian_topology_partition([2, 4])
        >>> P = P_replicas.create_cartesian_subtopology_partition([False, True])
        >>> model = distdl.DataParallel(make_model(P), P_replicas)
    """

    @constructor
    def __init__(
        self,
        module: torch.nn.Module,
        P_replicas: Partition,
        *,
        reduction: str = "mean",
        samples: Count | None = None,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, object] = {"reduction": reduction, "broadcast_buffers": broadcast_buffers}
        with constructing("DataParallel", {"P_replicas": P_replicas}, options | {"bucket_cap_mb": bucket_cap_mb}) as (
            grid,
        ):
            _check(module, grid.dim, reduction, bucket_cap_mb)
        self.module, self._grid = module, grid
        self.replicas, self.replica = (grid.shape[0], grid.place[0]) if grid.active else (1, 0)
        self._mean, self._samples, self._with_buffers = reduction == "mean", samples or samples_of, broadcast_buffers
        self._cap = None if bucket_cap_mb is None else int(bucket_cap_mb * (1 << 20))
        self._synchronizes, self._armed = True, False
        self._step = Step([1.0] * self.replicas, range(self.replicas), True)
        self._hooks = list[torch.utils.hooks.RemovableHandle]()
        self._trained, self._weighs, self._sums = "", False, GradientSums([])
        self._copies: dict[int, Operator] = {}
        self._spanning = list[torch.nn.Module]()
        self.sums_all_gradients = grid.size == self.replicas  # of all ranks that see samples
        if grid.active:
            self._line = grid.line(grid.side_by_side(grid.place, [0]))
            replica = grid.line(grid.side_by_side(grid.place, range(1, grid.dim)))
            with agreed("DataParallel", self._line, self._described):
                self._spanning = spanning_layers(module, replica, self._line)
            self._sum = operators.all_sum_reduce_among(self._line)
            self._apart = self._line.apart()
            self._receive([*module.parameters(), *module.buffers()], source=0)
            self._watch(self._trained_now())

    # The calls

    def forward(self, *args: object, **kwargs: object) -> object:
        """Call the model. In training mode, the replicas agree on the step first."""
        trains = self.training and torch.is_grad_enabled() and self._grid.active
        if trains:
            self._begin(args, kwargs)
        result = self.module(*args, **kwargs)
        if trains and self._step.synchronizes:
            for one in tree_leaves(result):
                if isinstance(one, torch.Tensor) and one.requires_grad:
                    one.register_hook(self._arm)
        return result

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without summing them over the replicas, in steps whose calls are within.

        The first step outside sums all that was accumulated. All ranks have to enter it.
        """
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """Let replicas take different numbers of steps: replicas that leave the block wait within for the others.

        While a replica waits, it takes part in the others' sums without gradients of its own. At the end all replicas
        have the parameters and buffers of a replica that left last. All ranks have to enter it. Without it, a step that
        not all replicas take raises a RuntimeError on all ranks, if the others call something else or end.

        Source: https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html
        """
        yield
        while self._grid.active:
            last = self._step.running
            step = self._step = agree(self._grid, None, True, self._trained)
            if not step.running:
                self._receive([*self.module.parameters(), *self.module.buffers()], source=min(last))
                self._step = Step([1.0] * self.replicas, range(self.replicas), True)
                return
            self._receive_buffers()
            if step.synchronizes:
                begin_pass(self._grid)
                self._sums.begin(0.0)
                self._sums.finish(idle=True)
                end_pass(self._grid)

    def reduce_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss of the last step's samples of all replicas, on all ranks, without a graph: for reports.

        Args:
            loss: this replica's, one number.

        Collective over P_replicas, outside of :meth:`join`.
        """
        own = loss.detach().clone().reshape(1)
        if not self._grid.active:
            return own.reshape(())
        share = self._weight() / self.replicas
        return self._sum(own * share if share else torch.zeros_like(own)).reshape(())

    @property
    def overlap(self) -> float:
        """In the last backward pass, the share of bytes whose sum was under way before the pass ended."""
        return self._sums.early / self._sums.bytes if self._grid.active and self._sums.bytes else 1.0

    # A step

    def _begin(self, args: Sequence[object], kwargs: dict[str, object]) -> None:
        """Agree on the step, and prepare for its backward pass. Collective over P_replicas."""
        if self._armed:  # an exception ended the last backward pass here; other ranks may wait in its sums
            self._armed = False
            self._sums.finish(idle=True)
            end_pass(self._grid, left=True)
        trained = self._trained_now()
        samples, error = 0.0, None
        try:
            samples = float(self._samples(*args, **kwargs))
        except Exception as raised:
            error = raised
        self._step = agree(self._grid, samples, self._synchronizes, trained, error)
        if self._mean and self._spanning and len(set(self._step.samples)) > 1:
            raise ValueError(
                f"DataParallel: the replicas have {list(self._step.samples)} samples, and the model has a "
                f"{type(self._spanning[0]).__name__} over ranks of several replicas, through which gradients travel "
                'before they are weighted; give all replicas equally many samples, or pass reduction="sum"'
            )
        if trained != self._trained:
            self._watch(trained)
        if self._weight() != 1.0 and not self._weighs:
            self._weighs = True
            watched = (one for bucket in self._sums.buckets for one in bucket.parameters)
            self._hooks += [one.register_hook(self._weighted) for one in watched]
        self._receive_buffers()
        if self._step.synchronizes:
            self._sums.begin(1 / self.replicas)

    def _trained_now(self) -> str:
        """A hash of which parameters are trained."""
        flags = bytes(parameter.requires_grad for parameter in self.module.parameters())
        return f"{zlib.crc32(flags):x}"

    def _watch(self, trained: str) -> None:
        """Make buckets of the parameters that are trained, and be told of their gradients."""
        for hook in self._hooks:
            hook.remove()
        self._trained, self._weighs = trained, False
        parameters = [one for one in self.module.parameters() if one.requires_grad and one.numel()]
        self._sums = GradientSums(bucketed(parameters, self._cap, self._apart))
        self._hooks = [
            one.register_post_accumulate_grad_hook(self._ready_in(bucket))
            for bucket in self._sums.buckets
            for one in bucket.parameters
        ]
        # Layers over several replicas sum the gradients of their parameters themselves.
        summed = {id(one) for layer in self._spanning for one in layer.parameters()}
        self._hooks += [one.register_hook(self._shared_out) for one in parameters if id(one) in summed]

    def _shared_out(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self.replicas

    def _ready_in(self, bucket: Bucket) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            if self._step.synchronizes:
                self._arm()
                self._sums.ready(bucket)

        return ready

    def _arm(self, gradient: torch.Tensor | None = None) -> None:
        """In a backward pass: begin it together, and have it end with the sums of all gradients."""
        if not self._armed:
            held = _core.HeldSignals()  # as long as torch keeps the callback: until the pass ends, however it does
            begin_pass(self._grid)
            self._armed = True
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._finish, held))

    def _finish(self, held: _core.HeldSignals) -> None:
        """End the pass. A signal whose handler raises would leave the other ranks in the sums."""
        problem = self._sums.finish()
        self._armed = False
        end_pass(self._grid, error=problem)
        self._sums.take()
        self._sums.begin(1 / self.replicas)  # for another pass through the same graph

    def _weight(self) -> float:
        """The factor of this replica's gradients and loss before the mean over replicas.

        The mean leaves as they are the gradients that a pass before has summed, and that this pass adds to. So a sum
        is taken by a mean as well.
        """
        return self._step.weight(self.replica) if self._mean else float(self.replicas)

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor | None:
        weight = self._weight()
        if weight == 1.0:
            return None
        return gradient * weight if weight else torch.zeros_like(gradient)  # no samples may mean no number

    # Parameters and buffers

    def _described(self) -> str:
        tensors = [*self.module.named_parameters(), *self.module.named_buffers()]
        return f"a model with {[(name, str(one.dtype), list(one.shape)) for name, one in tensors]}"

    def _receive_buffers(self) -> None:
        if self._with_buffers:
            self._receive(list(self.module.buffers()), source=min(self._step.running))

    @torch.no_grad()
    def _receive(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        """Take the values of a replica, as one message. Collective over the replicas."""
        there = [one for one in tensors if one.numel()]
        if not there or self.replicas == 1:
            return
        if source not in self._copies:
            self._copies[source] = operators.broadcast_among(self._line, source)
        own = [one.contiguous().reshape(-1).view(torch.uint8) for one in there]
        message = torch.cat(own) if self.replica == source else torch.empty(0, dtype=torch.uint8, device=own[0].device)
        received = self._copies[source](message)
        if self.replica != source:
            for one, part in zip(there, received.split([one.numel() for one in own]), strict=True):
                one.copy_(part.clone().view(one.dtype).view(one.shape))


def _check(module: torch.nn.Module, dim: int, reduction: str, cap: float | None) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"DataParallel: module is a {type(module).__name__}; it has to be a torch.nn.Module")
    if dim < 1:
        raise ValueError("DataParallel: P_replicas has no dimension; its first dimension counts the replicas")
    if reduction not in ("mean", "sum"):
        raise ValueError(f'DataParallel: reduction={reduction!r}; it must be "mean" or "sum"')
    if cap is not None and not cap > 0:
        raise ValueError(f"DataParallel: bucket_cap_mb={cap}; it must be positive")
