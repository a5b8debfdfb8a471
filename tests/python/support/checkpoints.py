"""Selective activation checkpointing: what of a call is kept, and what is computed again."""

import functools

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


def keep_all(context, operator, *arguments, **options):
    """Whatever is computed in the first call alone shifts what this policy keeps."""
    return CheckpointPolicy.MUST_SAVE


def keep_some(context, operator, *arguments, **options):
    """A policy that keeps what takes long, and computes the rest again."""
    keeps = operator.overloadpacket.__name__ in ("mm", "addmm", "bmm", "convolution", "exp", "select", "index_select")
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def selective(policy):
    """The options of a checkpoint with this policy."""
    return {"use_reentrant": False, "context_fn": functools.partial(create_selective_checkpoint_contexts, policy)}
