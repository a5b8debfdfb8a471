"""Distribute a model of torch over partitions, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast, overload

import torch

from distdl.models.function_module import whole_module
from distdl.models.model import DistributedModel
from distdl.partitions.construction import PartitionLike, constructor


@overload
def distribute(
    model: Callable[..., object],
    P_x: None,
    *,
    input_partitions: Mapping[str | int, object] | None = None,
) -> Callable[..., object]: ...
@overload
def distribute(
    model: torch.nn.Module | Callable[..., object],
    P_x: PartitionLike,
    plan: Mapping[str, object] | None = None,
    fallback: str = "error",
    as_sequential: bool = False,
    input_partitions: Mapping[str | int, object] | None = None,
    values: str = "refuse",
    halos: str = "auto",
) -> DistributedModel: ...
@constructor
def distribute(
    model: torch.nn.Module | Callable[..., object],
    P_x: PartitionLike | None,
    plan: Mapping[str, object] | None = None,
    fallback: str = "error",
    as_sequential: bool = False,
    input_partitions: Mapping[str | int, object] | None = None,
    values: str = "refuse",
    halos: str = "auto",
) -> DistributedModel | Callable[..., object]:
    """Distribute a model over partitions: it takes blocks of its input, and returns blocks of its usual results.

    Args:
        model: any ``torch.nn.Module``, or a function of whole tensors, such as a loss, a metric or an augmentation. Its
            steps must not depend on the values of tensors, unless ``values="agree"``. All ranks pass the same model;
            only weights may differ, of which those of worker 0 are used. A module is copied.
        P_x: a partition that says how the inputs are split, with as many dimensions as they have. None, as in a
            model's ``output_partition``, if every rank has them whole: a function is returned as it is.
        plan: partitions of single modules, by names or patterns such as ``"layer[34].*"``; their workers are workers of
            P_x. A list of numbers, such as ``[1, 1, 1, 4]``, is a partition of the first workers. An operation follows
            the partition of the innermost module around it, and of several patterns for this module the last: if it has
            as many dimensions as the partition, it is split in the same way where it can be; otherwise, over the same
            workers such that the fewest elements are redistributed. A partition that splits features, or a word of
            transformers such as "colwise" or "rowwise", keeps the weights in blocks on the workers that use them. All
            other parameters are sent to all workers. A model's own plan can be passed: ``plan=model.tp_plan``.
        fallback: for operations that cannot be split: "error" lists all of them before anything is communicated,
            "gather" computes them on one worker.
        as_sequential: draw the random numbers that the model draws in one process with the same seed, for dropout and
            all else. Every rank draws the numbers of whole tensors, and the generators of all ranks have to be in step.
            torch fills a tensor in the order of its memory: for inputs this is the order of their blocks, such as
            channels_last; for other tensors the first call finds it by running each operation on zeros, on every rank.
        input_partitions: the partitions of inputs that are not split as P_x says, by the names of arguments or their
            positions: ``{"labels": [1, 2, 2]}``, with workers of P_x as in a plan; None if every rank has the whole
            tensor. For an argument with several tensors, a partition that all of them have, or a dict or list of
            partitions. Tensors without a partition are split as P_x says if they have as many dimensions as P_x, and
            are whole on every rank if they have fewer.
        values: for models that look at the values of a tensor, such as ``if x.max() > 5``, ``x.item()`` or
            ``x.nonzero()``: "refuse" raises, unless buffers alone determine the values; "agree" lets the values of each
            call decide, on all ranks alike. The model is recorded once for each outcome, and a call whose outcome is
            another one than in the call before computes again what comes before the look. So it suits conditions and
            small numbers.
        halos: how convolutions of split images receive what they read of other blocks: with "each", each of them
            exchanges its halo. With "chain", the first of several receives the halo of all of them, and workers compute
            the overlap of their results more than once. "auto" does so where it is much faster by estimate, between
            hosts; on a single host it is "each".

    Random numbers depend on the seed, the call and the index in the whole tensor only, neither on the partition nor on
    the number of ranks. In each call that draws any, every rank takes one number from torch's default generator; that
    of worker 0 determines the others. With ``as_sequential=True`` they are torch's own numbers.

    Returns:
        A module with the same parameters by the same names, of which each rank has its part: see
        :func:`distdl.parameter_layout`. Its results are blocks, except for tensors without dimensions, such as a loss,
        which every rank has: ``loss.backward()`` on every rank gives the gradients of one process.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described; in a call, if a tensor does not fit its
            partition, if it is unclear whether it is a block or a whole tensor, or if a plan cannot be followed.
        NotImplementedError: on all ranks, in the first call, if the model looks at the values of a tensor (unless
            values="agree"), or an operation cannot be split.

    Collective over the communicator that P_x comes from, like each call of the result.
    """
    if P_x is None and callable(model) and not isinstance(model, torch.nn.Module):
        return model
    return DistributedModel.from_sequential(
        whole_module(model), cast(PartitionLike, P_x), plan=plan, fallback=fallback, as_sequential=as_sequential,
        input_partitions=input_partitions, values=values, halos=halos,
    )  # fmt: skip
