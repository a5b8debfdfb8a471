"""Plans of words that a model's structure suggests: splits of features, heads, vocabularies and experts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch

from distdl.models.capture.recording import Node, Recording, Value
from distdl.models.plan.parameter_splits import parts_of

Words = dict[str, str]
"""Words of a plan, by patterns of names of modules and parameters."""

_ATTENTION = torch.nn.MultiheadAttention
_NORMS = ("LayerNorm", "RMSNorm", "GroupNorm", "layer_norm", "rms_norm", "group_norm")
_PRODUCTS = ("matmul", "bmm", "einsum", "baddbmm")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def feature_words(model: torch.nn.Module, recording: Recording, workers: int) -> list[Words]:
    """Plans that split what has at least as many features, heads, rows or experts as there are workers.

    They are the plan that the model carries; one for all layers, without or with the vocabulary; and one for experts.
    """
    words, sizes = _words_by_name(model, recording)
    known = {name: word for name, word in words.items() if sizes[name] >= workers}
    vocabulary = {name for name in known if _is_vocabulary(model, name)}
    groups = [known, {name: word for name, word in known.items() if name not in vocabulary},
              {name: word for name, word in known.items() if word == "grouped_gemm"}]  # fmt: skip
    of_model = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    plans = [dict(of_model), *(_as_patterns(model, group) for group in groups)]
    return [plan for i, plan in enumerate(plans) if plan and plan not in plans[:i]]


def _words_by_name(model: torch.nn.Module, recording: Recording) -> tuple[Words, dict[str, int]]:
    """A word for each module or parameter that can be split, and the number of what it splits.

    A layer is split along its result, or along its input where that is made of features that are split already.
    """
    modules = dict(model.named_modules())
    tied = _tied_parameters(model)
    words: Words = {}
    sizes: dict[str, int] = {}
    split: set[Value] = set()  # values with features in blocks
    for node in recording.nodes:
        reads_split = any(value in split for value in node.arguments)
        is_split = reads_split and node.key not in _NORMS
        for value in node.inputs:
            path, _, leaf = value.name.rpartition(".")
            module = modules.get(path)
            if isinstance(modules.get(path.rpartition(".")[0]), _ATTENTION):
                continue  # its projections are split with it
            if module is None or leaf not in ("weight", "in_proj_weight"):
                if value.name and len(value.shape) > 2 and node.key in _PRODUCTS:
                    words[value.name], sizes[value.name] = "grouped_gemm", value.shape[0]
                continue
            word, size = _word_of(module, value, reads_split, value.name in tied)
            if word == "colwise" and _is_packed(recording, node, module):
                word = "packed_colwise"
            if word:
                words.setdefault(path, word)
                sizes[path] = min(size, sizes.get(path, size))
                is_split = words[path] in ("colwise", "packed_colwise") and not isinstance(module, _ATTENTION)
        if is_split:
            split.update(node.outputs)
    return words, sizes


def _word_of(module: torch.nn.Module, weight: Value, reads_split: bool, is_tied: bool) -> tuple[str, int]:
    if isinstance(module, _ATTENTION):
        return "colwise", module.num_heads
    if isinstance(module, torch.nn.Embedding):  # blocks of features move less than the sums of blocks of rows
        return ("embedding_rowwise" if is_tied else "embedding_colwise"), weight.shape[0 if is_tied else 1]
    is_transposed = type(module).__name__ == "Conv1D"
    if isinstance(module, torch.nn.Linear) or is_transposed:
        word = "rowwise" if reads_split else "colwise"
        return word, weight.shape[(word == "rowwise") != is_transposed]
    return "", 0


def _is_packed(recording: Recording, node: Node, module: torch.nn.Module) -> bool:
    """Whether a model cuts the result of a layer into as many equal parts as a packed layer has."""
    features = node.outputs[0].shape[-1:]
    results, lengths = {node.outputs[0]}, set()
    for other in recording.nodes:
        if not other.inputs or other.inputs[0] not in results:
            continue
        if other.key == "narrow" and other.args[1] % len(other.inputs[0].shape) == len(other.inputs[0].shape) - 1:
            lengths.add(other.args[3])
        elif other.key in ("view", "reshape") and other.outputs[0].shape[-1:] == features:
            results.update(other.outputs)
    return len(lengths) == 1 and features[0] == lengths.pop() * parts_of(module, features[0], "packed_colwise")


def _tied_parameters(model: torch.nn.Module) -> set[str]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name for group in names.values() if len(group) > 1 for name in group}


def _is_vocabulary(model: torch.nn.Module, name: str) -> bool:
    """Whether a module is an embedding, or a layer whose results are as many as an embedding's rows."""
    modules = dict(model.named_modules())
    rows = {module.num_embeddings for module in modules.values() if isinstance(module, torch.nn.Embedding)}
    module = modules.get(name)
    return isinstance(module, torch.nn.Embedding) or getattr(module, "out_features", None) in rows


def _as_patterns(model: torch.nn.Module, words: Mapping[str, str]) -> Words:
    """The same words with ``*`` for numbers, where a pattern means no other modules."""
    names = [name for name, _ in model.named_modules()]
    names += [name for name, _ in model.named_parameters(remove_duplicate=False)]
    plan: Words = {}
    for name, word in words.items():
        pattern = _NUMBER.sub("*", name)
        plan[pattern if _means_alike(pattern, word, words, names) else name] = word
    return plan


def _means_alike(pattern: str, word: str, words: Mapping[str, str], names: list[str]) -> bool:
    return all(words.get(name) == word for name in names if fnmatchcase(name, pattern))
