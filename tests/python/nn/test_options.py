"""Options of torch.nn's layers: each counts as in torch, and those that ours do not know are refused by name."""

import inspect
from dataclasses import replace

import pytest

import distdl.nn as dnn
from distdl.models.rules.applied_layer import twin_of
from support.blocks import grid
from support.families import EXAMPLES, splits
from support.ranks import on_all_ranks, raises_everywhere
from support.sequential import assert_equals_sequential

KINDS = {kind: example for example in reversed(EXAMPLES.values()) if (kind := type(example.twin())) in dnn.SEQUENTIAL}

VALUES = {"eps": 0.2, "momentum": 0.4, "norm_type": 3.0, "reduction": "sum", "p": 0.3}
"""Values that are no defaults. Options that are True or False by default are turned round."""
ELSEWHERE = {
    "_freeze": "from_pretrained()",
    "_weight": "from_pretrained()",
    "bias of InstanceNorm3d": "it counts with affine=True alone",
    "bias of LinearCrossEntropyLoss": "PyTorch's samples, in test_families.py",
    "device": "it says nothing of values",
    "dropout of MultiheadAttention": "test_attention_draws.py",
    "dtype": "it says nothing of values",
    "groups": "test_conv.py and test_conv_transpose.py",
    "include_last_offset": "test_embedding.py",
    "inplace": "test_dropout.py and test_overwritten.py",
    "options of LinearCrossEntropyLoss": "PyTorch's samples, in test_families.py",
    "padding_mode": "test_conv.py; transposed convolutions take zeros alone",
    "reduce": "it becomes a reduction",
    "scale_grad_by_freq of EmbeddingBag": "support/families/embedding.py",
    "size_average": "it becomes a reduction",
    "sparse": "test_embedding.py",
    "start_dim": "test_rearranging.py",
}
"""Options of which the tables have no other value, and the tests that have."""
DRAWN = ("Pool", "Upsampl", "SyncBatchNorm", "Transformer")
"""In the names of classes whose options are drawn, or in their layers'."""


def options_of(module):
    """The options with which a module of torch.nn was made."""
    names = inspect.signature(type(module)).parameters
    options = {name: getattr(module, name) for name in names if hasattr(module, name)}
    if "bias" in names:
        options["bias"] = options.get("bias") is not None and options["bias"] is not False
    return options


def without_example():
    """(class, option) of the options that have their default in each example."""
    seen = [(type(module), options_of(module)) for module in (example.twin() for example in EXAMPLES.values())]
    for kind in KINDS:
        if any(name in kind.__name__ for name in DRAWN):
            continue
        for option in inspect.signature(kind).parameters.values():
            listed = {option.name, f"{option.name} of {kind.__name__}"} & set(ELSEWHERE)
            values = [options.get(option.name, option.default) for other, options in seen if other is kind]
            if option.default is not option.empty and not listed and all(value == option.default for value in values):
                yield kind, option


LEFT = {f"{kind.__name__} {option.name}": (kind, option) for kind, option in without_example()}
check = on_all_ranks(assert_equals_sequential)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", LEFT)
def test_each_option_counts(P_world, name):
    kind, option = LEFT[name]
    example = KINDS[kind]
    value = not option.default if isinstance(option.default, bool) else VALUES[option.name]

    def twin():
        module = example.twin()
        return kind(**{**options_of(module), option.name: value}).double().train(module.training)

    check(replace(example, twin=twin), grid(P_world, splits(example)[0]))


@pytest.fixture
def newer(monkeypatch, kind):
    """The class with a further option, as a newer torch may have it."""
    own = kind.__init__

    def made(self, *args, novelty=None, **kwargs):
        own(self, *args, **kwargs)
        self.novelty = novelty

    signature = inspect.signature(own)
    known = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    further = inspect.Parameter("novelty", inspect.Parameter.KEYWORD_ONLY, default=None)
    made.__signature__ = signature.replace(parameters=[*known, further])
    monkeypatch.setattr(kind, "__init__", made)
    return kind


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_option_of_a_newer_torch_is_refused(P_world, newer):
    example = KINDS[newer]
    P_x, module = grid(P_world, [1] * example.dims), example.twin()
    assert twin_of(module) is not None
    module.novelty = 2
    assert twin_of(module) is None  # distribute() looks at the functions that it calls
    rule = "novelty=2, which this layer does not know"
    raises_everywhere(TypeError, rule, lambda: dnn.SEQUENTIAL[newer].from_sequential(module, P_x), seconds=20.0)
