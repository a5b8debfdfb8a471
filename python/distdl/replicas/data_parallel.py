"""Data-parallel training: copies of a model on disjoint ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from distdl import _core, operators
from distdl.partitions.comparison import agreed
from distdl.partitions.construction import constructing, constructor
from distdl.partitions.partition import Partition
from distdl.replicas.agreement import TrainingStep, begin_pass, begin_step, end_pass
from distdl.replicas.buckets import Bucket, GradientSums, make_buckets
from distdl.replicas.copies import ReplicaCopies
from distdl.replicas.spanning import spanning_layers
from distdl.torch_compat.autograd import at_end_of_backward
from distdl.torch_compat.trees import tree_leaves

CountSamples = Callable[..., float]


def count_samples(*args: object, **kwargs: object) -> float:
    """The extent of the first dimension of the first tensor among the arguments; 0 without tensors."""
    leaves = tree_leaves((args, kwargs))
    return next((float(leaf.shape[0]) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), 0.0)


class DataParallel(torch.nn.Module):
    """Copies of a model, each on its own partition, that train together on different samples.

    After ``loss.backward()`` each replica has the gradients of the loss of all samples, as of a single batch. They are
    summed in buckets, while the backward pass goes on. Parameters stay equal to the last bit.

    Args:
        module: the model on a partition of this replica's ranks, or any model of torch if a replica is a single rank.
            It receives the parameters and buffers of replica 0.
        P_replicas: replicas along the first dimension, the workers of each along the others.
        reduction: the loss's reduction over the samples: "mean" or "sum". With "mean", replicas are weighted by their
            numbers of samples.
        samples: a function of a call's arguments that returns the number of samples, by default the extent of the
            first dimension of the first tensor. It is summed over the workers of a replica.
        broadcast_buffers: whether replicas receive the buffers of replica 0 before each training step, as in
            ``torch.nn.parallel.DistributedDataParallel``. If not, each replica keeps its running statistics.
        bucket_cap_mb: the size of a bucket in MiB; by default 1 to 25 MiB, for about five buckets.

    Raises:
        ValueError: on all ranks, if they pass different options, or models with different parameters; or if a layer
            over ranks of several replicas has parameters that some replica does not keep.
        TypeError: on all ranks, if P_replicas is not a partition, or ``module`` is not a ``torch.nn.Module``.

    Constructing is collective over P_replicas, and so are calls in training mode while gradients are recorded, and
    backward passes, which use the sample counts of the last such call. In evaluation and under ``torch.no_grad`` each
    replica calls its model alone.

    The model may have layers over ranks of several replicas, such as ``DistributedBatchNorm2d(P, ...)`` with all
    replicas along the batch. Then all replicas call the model together, in evaluation too. Such layers need
    ``parameter_layout("replicated")`` if they have parameters, and equally many samples in all replicas with
    ``reduction="mean"``: otherwise a step raises ValueError on all ranks.

    A parameter that any replica uses in a pass gets a gradient on all. ``requires_grad`` may change between steps, on
    all ranks.

    Attributes:
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
        samples: CountSamples | None = None,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, object] = {"reduction": reduction, "broadcast_buffers": broadcast_buffers}
        options["bucket_cap_mb"] = bucket_cap_mb
        with constructing("DataParallel", {"P_replicas": P_replicas}, options) as grids:
            grid = grids[0]
            _check_options(module, grid.dim, reduction, bucket_cap_mb)
        self.module, self._grid = module, grid
        self.replicas, self.replica = (grid.shape[0], grid.place[0]) if grid.active else (1, 0)
        self._mean, self._samples, self._with_buffers = reduction == "mean", samples or count_samples, broadcast_buffers
        self._cap = None if bucket_cap_mb is None else int(bucket_cap_mb * (1 << 20))
        self._synchronizes, self._in_backward = True, False
        self._step = TrainingStep([1.0] * self.replicas, range(self.replicas), True)
        self._hooks = list[torch.utils.hooks.RemovableHandle]()
        self._trained, self._has_weight_hooks, self._sums = "", False, GradientSums([])
        self._spanning = list[torch.nn.Module]()
        self.sums_all_gradients = grid.size == self.replicas  # of all ranks that see samples
        if grid.active:
            self._line = grid.line(grid.side_by_side(grid.place, [0]))
            replica = grid.line(grid.side_by_side(grid.place, range(1, grid.dim)))
            with agreed("DataParallel", self._line, partial(_description, module)):
                self._spanning = spanning_layers(module, replica, self._line)
            self._sum = operators.all_sum_reduce_among(self._line)
            self._sum_line = self._line.apart()
            self._copies = ReplicaCopies(self._line, self.replica, self.replicas)
            self._copies.copy([*module.parameters(), *module.buffers()], source=0)
            self._register_hooks(self._trained_hash())

    # The calls

    def forward(self, *args: object, **kwargs: object) -> object:
        """Call the model. In training mode, the replicas agree on the step first."""
        trains = self.training and torch.is_grad_enabled() and self._grid.active
        if trains:
            self._begin(args, kwargs)
        result = self.module(*args, **kwargs)
        if trains and self._step.synchronizes:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    leaf.register_hook(self._begin_backward)
        return result

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without summing them over the replicas, in steps whose calls are within.

        The first step outside sums all accumulated gradients. All ranks have to enter it.
        """
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    @contextmanager
    def join(self) -> Iterator[None]:
        """Let replicas take different numbers of steps: replicas that finish wait at the end of the block.

        At the end all replicas have the parameters and buffers of a replica that left last. All ranks have to enter it.
        Without it, a step that only some replicas take raises RuntimeError on all ranks.

        Source: https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html
        """
        yield
        while self._grid.active:
            last = self._step.running
            step = self._step = begin_step(self._grid, None, True, self._trained)
            if not step.running:
                self._copies.copy([*self.module.parameters(), *self.module.buffers()], source=min(last))
                self._step = TrainingStep([1.0] * self.replicas, range(self.replicas), True)
                return
            self._copy_buffers()
            if step.synchronizes:
                begin_pass(self._grid)
                self._sums.begin(0.0)
                self._sums.finish(idle=True)
                end_pass(self._grid)

    def reduce_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss over the last step's samples of all replicas, on all ranks, without a graph: for reports.

        Args:
            loss: this replica's loss, with a single element.

        Collective over P_replicas, outside of :meth:`join`.
        """
        local = loss.detach().clone().reshape(1)
        if not self._grid.active:
            return local.reshape(())
        share = self._weight() / self.replicas
        return self._sum(local * share if share else torch.zeros_like(local)).reshape(())

    @property
    def overlap(self) -> float:
        """The share of bytes of the last backward pass whose sums began before the pass ended."""
        return self._sums.early_bytes / self._sums.bytes if self._grid.active and self._sums.bytes else 1.0

    # A step

    def _begin(self, args: Sequence[object], kwargs: dict[str, object]) -> None:
        """Agree on the step, and prepare for its backward pass. Collective over P_replicas."""
        if self._in_backward:  # an exception ended the last backward pass here; other ranks may wait in its sums
            self._in_backward = False
            self._sums.finish(idle=True)
            end_pass(self._grid, left=True)
        trained = self._trained_hash()
        samples, error = 0.0, None
        try:
            samples = float(self._samples(*args, **kwargs))
        except Exception as raised:
            error = raised
        self._step = begin_step(self._grid, samples, self._synchronizes, trained, error)
        if self._mean and self._spanning and len(set(self._step.samples)) > 1:
            raise ValueError(
                f"DataParallel: the replicas have {list(self._step.samples)} samples, and the model has a "
                f"{type(self._spanning[0]).__name__} over ranks of several replicas, through which gradients travel "
                'before they are weighted; give all replicas equally many samples, or pass reduction="sum"'
            )
        if trained != self._trained:
            self._register_hooks(trained)
        if self._weight() != 1.0 and not self._has_weight_hooks:
            self._has_weight_hooks = True
            watched = (parameter for bucket in self._sums.buckets for parameter in bucket.parameters)
            self._hooks += [parameter.register_hook(self._apply_weight) for parameter in watched]
        self._copy_buffers()
        if self._step.synchronizes:
            self._sums.begin(1 / self.replicas)

    def _trained_hash(self) -> str:
        flags = bytes(parameter.requires_grad for parameter in self.module.parameters())
        return f"{zlib.crc32(flags):x}"

    def _register_hooks(self, trained: str) -> None:
        """Make buckets of the trained parameters, and register hooks for their gradients."""
        for hook in self._hooks:
            hook.remove()
        self._trained, self._has_weight_hooks = trained, False
        parameters = [x for x in self.module.parameters() if x.requires_grad and x.numel()]
        self._sums = GradientSums(make_buckets(parameters, self._cap, self._sum_line))
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._gradient_hook(bucket))
            for bucket in self._sums.buckets
            for parameter in bucket.parameters
        ]
        # Layers over several replicas sum the gradients of their parameters themselves.
        summed = {id(parameter) for layer in self._spanning for parameter in layer.parameters()}
        self._hooks += [
            parameter.register_hook(lambda gradient: gradient / self.replicas)
            for parameter in parameters
            if id(parameter) in summed
        ]

    def _gradient_hook(self, bucket: Bucket) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if self._step.synchronizes:
                self._begin_backward()
                self._sums.count_gradient(bucket)

        return hook

    def _begin_backward(self, gradient: torch.Tensor | None = None) -> None:
        """Begin a backward pass on all ranks, and have it end with the sums of all gradients."""
        if not self._in_backward:
            held = _core.HeldSignals()  # as long as torch keeps the callback: until the pass ends, however it does
            begin_pass(self._grid)
            self._in_backward = True
            at_end_of_backward(partial(self._end_backward, held))

    def _end_backward(self, held: _core.HeldSignals) -> None:
        """End the pass. Signals are held, since a handler that raises would leave other ranks in the sums."""
        problem = self._sums.finish()
        self._in_backward = False
        end_pass(self._grid, error=problem)
        self._sums.write_gradients()
        self._sums.begin(1 / self.replicas)  # for another pass through the same graph

    def _weight(self) -> float:
        """The factor of this replica's gradients and loss before the mean over replicas.

        A sum is computed as a mean too, which keeps accumulated gradients, since they are equal on all replicas.
        """
        return self._step.weight(self.replica) if self._mean else float(self.replicas)

    def _apply_weight(self, gradient: torch.Tensor) -> torch.Tensor | None:
        weight = self._weight()
        if weight == 1.0:
            return None
        return gradient * weight if weight else torch.zeros_like(gradient)  # no samples may mean no number

    # Parameters and buffers

    def _copy_buffers(self) -> None:
        if self._with_buffers:
            self._copies.copy(list(self.module.buffers()), source=min(self._step.running))


def _description(module: torch.nn.Module) -> str:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return f"a model with {[(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in tensors]}"


def _check_options(module: torch.nn.Module, dim: int, reduction: str, cap: float | None) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"DataParallel: module is a {type(module).__name__}; it has to be a torch.nn.Module")
    if dim < 1:
        raise ValueError("DataParallel: P_replicas has no dimension; its first dimension counts the replicas")
    if reduction not in ("mean", "sum"):
        raise ValueError(f'DataParallel: reduction={reduction!r}; it must be "mean" or "sum"')
    if cap is not None and not cap > 0:
        raise ValueError(f"DataParallel: bucket_cap_mb={cap}; it must be positive")
