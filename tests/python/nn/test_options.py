"""Options of torch.nn's layers that ours do not know: refused by name where they are not the default."""

import inspect

import pytest

import distdl.nn as dnn
from distdl.models.layer import twin_of
from support.blocks import grid
from support.families import EXAMPLES
from support.ranks import raises_everywhere

KINDS = {kind: one for one in reversed(EXAMPLES.values()) if (kind := type(one.twin())) in dnn.SEQUENTIAL}


@pytest.fixture
def newer(monkeypatch, kind):
    """The class with a further option, as a newer torch may have it."""
    own = kind.__init__

    def made(self, *args, novelty=None, **kwargs):
        own(self, *args, **kwargs)
        self.novelty = novelty

    signature = inspect.signature(own)
    known = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
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
