"""Distribute a model of torch over partitions, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from distdl.models.function_module import module_of
from distdl.models.model import DistributedModel
from distdl.partitions.construction import PartitionLike, constructor


@constructor
def distribute(
    model: torch.nn.Module | Callable[..., object],
    P_x: PartitionLike,
    plan: Mapping[str, object] | None = None,
    fallback: str = "error",
    as_sequential: bool = False,
    input_partitions: Mapping[str | int, object] | None = None,
) -> DistributedModel:
    """Distribute a model over partitions: it takes blocks of the input, and returns blocks of the sequential results.

    Args:
        model: any ``torch.nn.Module``, or a function of whole tensors, such as a loss, a metric or an augmentation. The
            computation must not depend on the values of tensors. A module is copied; it is the same on all ranks but
            for its weights: worker 0's count.
        P_x: how the inputs are split, with as many dimensions as they have, such as ``[1, 1, 2, 2]``.
        plan: the partitions of certain modules, by their names or by patterns such as ``"layer[34].*"``, with ranks of
            P_x; ``[1, 1, 1, 4]`` is a partition of the first workers. A partition with as many dimensions as a tensor
            says how it is split, if the operation can be split so; other operations are split so that the least is
            redistributed among its workers. The innermost module counts, and of several patterns for it the last.
            Words of transformers, such as "colwise" and "rowwise", and partitions that split features, let weights live
            in blocks where they are used; plans that models carry are taken: ``plan=model.tp_plan``. Other parameters
            travel to all workers.
        fallback: for operations that cannot be split: "error" lists all of them before anything is communicated,
            "gather" computes them on one worker.
        as_sequential: draw the random numbers that the model draws in one process with the same seed, for dropout and
            all else. Every rank draws the numbers of whole tensors, and the generators of all ranks have to be in step.
            torch draws in the order of memory: inputs count as they are in the blocks, such as in channels_last. To
            know the order of other tensors, the first call runs each operation once with zeros on every rank.
        input_partitions: the partitions of inputs that are not split as P_x says, by the names of arguments or their
            positions: ``{"labels": [1, 2, 2]}``, with workers of P_x as in a plan; None if every rank has the whole
            tensor. An argument with several tensors has a partition for all of them, or a dict or list of partitions.
            Without a partition, tensors with as many dimensions as P_x are split as P_x says, and tensors with fewer
            dimensions are whole on every rank.

    Random numbers are functions of the seed, the call and the index in the whole tensor: the same for every partition
    and number of ranks. A call that draws any takes one number from torch's default generator, on every rank; worker
    0's number decides. With ``as_sequential=True`` they are torch's numbers.

    Returns:
        A module with the same parameters by the same names. Each rank has its part: see
        :func:`distdl.parameter_layout`. Its results are blocks, but for numbers (tensors without dimensions, such as a
        loss), which every rank has: ``loss.backward()`` on every rank gives the gradients of one process.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described; in a call, if a tensor does not fit its
            partition, or may be a block or a whole tensor, or if a plan cannot be followed.
        NotImplementedError: on all ranks, in the first call, if the model looks at the values of a tensor, or an
            operation cannot be split.

    Collective over the communicator that P_x comes from, like each call of the result.
    """
    is_function = callable(model) and not isinstance(model, torch.nn.Module | type)
    module = module_of(model) if is_function else model
    return DistributedModel.from_sequential(
        module, P_x, plan=plan, fallback=fallback, as_sequential=as_sequential, input_partitions=input_partitions
    )
