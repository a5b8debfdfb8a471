"""The table of torch.nn: each class is judged, nothing in it is stale, and what it says of blocks is so."""

import copy
import functools
import inspect
import warnings

import pytest
import torch

from distdl.nn import SEQUENTIAL
from distdl.nn.base import split_checks
from distdl.nn.base.split_rules import REFUSED, SPLIT_RULES
from support.programs import load_program

pytestmark = pytest.mark.ranks(1)


PAGE = load_program("docs/torch_nn")
CLASSES = {kind.__name__: kind for kind in PAGE.classes()}


def test_every_class_is_judged():
    """A class that a new version of torch brings needs a layer, a rule, or a reason."""
    assert [name for name, kind in CLASSES.items() if PAGE.verdict(kind) is None] == []


def test_nothing_is_stale():
    """A class that is in several parts of the table, or no longer in torch, or refused although there is a layer."""
    names = [name for part in (SPLIT_RULES, PAGE.CONTAINERS, REFUSED) for name in part]
    assert len(set(names)) == len(names)
    assert set(names) <= set(CLASSES)
    ours = {kind.__name__ for kind in SEQUENTIAL}
    assert not ours & {*PAGE.CONTAINERS, *REFUSED}


def test_the_page_has_every_class(tmp_path):
    PAGE.write(tmp_path / "page")
    assert (tmp_path / "page").read_text().count("   * - ") == len(CLASSES) + 1


def test_messages_name_the_layer_to_use():
    problem = split_checks.problem_of(torch.nn.CircularPad2d(1), [1, 1, 2, 2])
    assert problem.endswith("must not split space; use DistributedPad")
    assert split_checks.problem_of(torch.nn.LSTM(2, 2), [1, 1, 2]).endswith("the batch may be split")


def own(kind, *arguments, inputs, **options):
    """A sample: a module and what it is called with."""
    torch.manual_seed(3)
    twin = kind(*arguments, **options).double()
    return twin, [torch.linspace(-2, 2, torch.Size(shape).numel()).double().reshape(shape).sin() for shape in inputs]


def own_samples():
    """Where PyTorch's samples split nothing that may be split, or where there are none."""
    nn, image = torch.nn, [(4, 3, 6, 8)]
    yield own(nn.CrossMapLRN2d, 3, inputs=image)
    yield own(nn.Identity, inputs=image)
    yield own(nn.Hardsigmoid, inputs=image)
    yield own(nn.Upsample, scale_factor=1.5, inputs=image)
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        yield own(kind, 3, 2, inputs=[(5, 4, 3)])
        yield own(kind, 3, 2, batch_first=True, bidirectional=True, inputs=[(5, 4, 3)])
    for kind in (nn.RNNCell, nn.LSTMCell, nn.GRUCell):
        yield own(kind, 3, 2, inputs=[(4, 3)])
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        twin, inputs = own(kind, 3, inputs=[(4, 3, 2, 2, 2)[: 2 + int(kind.__name__[-2])]])
        yield twin.eval(), inputs
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"):
        dims = int(name[-2]) if name[-1] == "d" else 2
        twin, inputs = own(getattr(nn, name), inputs=[(4, 3, 2, 2, 2)[: 2 + dims]])
        yield twin.eval(), inputs
    yield own(nn.Flatten, 2, inputs=image)
    yield own(nn.Unflatten, 1, (3, 1), inputs=image)
    yield own(nn.Softmax2d, inputs=image)
    yield own(nn.ChannelShuffle, 3, inputs=image)
    yield own(nn.PixelShuffle, 2, inputs=[(3, 8, 2, 4)])
    yield own(nn.PixelUnshuffle, 2, inputs=image)
    yield own(nn.Unfold, 2, inputs=image)
    yield own(nn.Fold, 2, 2, inputs=[(4, 8, 1)])
    yield own(nn.UpsamplingNearest2d, scale_factor=1.5, inputs=image)
    yield own(nn.UpsamplingBilinear2d, scale_factor=2, inputs=image)
    yield own(nn.CosineSimilarity, inputs=[(4, 3, 2), (4, 3, 2)])
    yield own(nn.PairwiseDistance, inputs=[(4, 3, 2), (4, 3, 2)])
    for dims in (1, 2, 3):
        space = (4, 6, 2)[:dims]
        yield own(getattr(nn, f"MaxPool{dims}d"), 2, inputs=[(4, 3, *space)])
        yield own(getattr(nn, f"ZeroPad{dims}d"), 1, inputs=[(4, 3, *space)])
        twin, inputs = own(getattr(nn, f"MaxUnpool{dims}d"), 1, inputs=[(4, 3, *space)])
        places = torch.arange(torch.Size(space).numel()).reshape(space).expand(4, 3, *space)
        yield twin, [*inputs, places]
    table = nn.Embedding(7, 2).double()
    yield table, [torch.arange(12).reshape(4, 3) % 7]
    yield nn.EmbeddingBag(7, 2).double(), [torch.arange(12).reshape(4, 3) % 7]


@functools.cache
def module_infos():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db

    return [info for info in module_db if info.module_cls.__name__ in SPLIT_RULES]


def samples():
    """PyTorch's own, and the above: modules, and the tensors of their calls."""
    yield from own_samples()
    for info in module_infos():
        torch.manual_seed(7)
        for sample in info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=False, training=True
        ):
            call, options = sample.forward_input, sample.constructor_input
            if call.kwargs or not all(isinstance(argument, torch.Tensor) for argument in call.args):
                continue
            typed = "dtype" in inspect.signature(info.module_cls).parameters
            kwargs = {**options.kwargs, **({"dtype": torch.float64} if typed else {})}
            yield info.module_cls(*options.args, **kwargs), list(call.args)


def flat(results):
    """Tensors in a row."""
    if isinstance(results, torch.Tensor):
        return [results]
    return [tensor for result in results for tensor in flat(result)]


def put_together(first, other, whole, d):
    """Two results side by side: along the dimension that the input was split along, or that shrank."""

    def fits(i):
        rest = [(*y.shape[:i], *y.shape[i + 1 :]) for y in (first, other, whole)]
        return rest[0] == rest[1] == rest[2] and first.shape[i] + other.shape[i] == whole.shape[i]

    return torch.cat([first, other], next((i for i in (d, *range(whole.dim())) if i < whole.dim() and fits(i)), d))


@pytest.mark.filterwarnings("ignore")
def test_blocks_give_what_the_whole_gives():
    """On two blocks of different sizes, along each dimension that a rule lets be split; each rule has a sample."""
    checked = {}
    for module, inputs in samples():
        name, n = type(module).__name__, inputs[0].dim()
        rule = SPLIT_RULES[name]
        kept = {d % n for d in rule.whole(module, n) if -n <= d < n}
        others = [x for x in inputs if x.shape[:1] != inputs[0].shape[:1] or x.dim() != n]
        derived = copy.copy(module)  # of another class, whose name says nothing
        derived.__class__ = type("Own", (type(module),), {})
        assert split_checks.problem_of(derived, [2] * n).replace("Own", name) == split_checks.problem_of(
            module, [2] * n
        )
        for d in sorted(set(range(n)) - kept):
            size = inputs[0].shape[d]
            if size < 2 or others:
                continue
            parts = [[x.narrow(d, 0, 1) for x in inputs], [x.narrow(d, 1, size - 1) for x in inputs]]
            whole = flat(module(*inputs))
            blocks = [flat(module(*part)) for part in parts]
            for y, first, second in zip(whole, *blocks, strict=True):
                joined = put_together(first, second, y, d)
                assert torch.allclose(joined, y, rtol=0, atol=1e-12, equal_nan=True), (module, d)
            checked.setdefault(name, set()).add(d)
    nowhere = {"FractionalMaxPool2d", "FractionalMaxPool3d", *(name for name in SPLIT_RULES if "Transformer" in name)}
    assert set(SPLIT_RULES) - set(checked) == nowhere | {"MultiheadAttention", "AdaptiveLogSoftmaxWithLoss"}


@pytest.mark.parametrize(
    ("module", "splits", "does_not"),
    [
        (torch.nn.CrossEntropyLoss(reduction="none"), [(2, 1), (2, 1, 1)], [(1, 2), (2,)]),
        (torch.nn.CTCLoss(reduction="none"), [(1, 2, 1)], [(2, 1, 1), (1, 1, 2), (2, 1)]),
        (torch.nn.L1Loss(reduction="none"), [(2, 1), (2,)], []),
        (torch.nn.L1Loss(), [], [(2, 1), (2,)]),
        (torch.nn.AdaptiveLogSoftmaxWithLoss(4, 5, [2]), [], [(2, 1)]),
    ],
    ids=str,
)
def test_losses(module, splits, does_not):
    """On blocks as they are: each input's own loss, where inputs are whole and there is a batch of them."""
    assert [split_checks.problem_of(module, shape) for shape in splits] == [""] * len(splits)
    assert all("must not split" in split_checks.problem_of(module, shape) for shape in does_not)


@pytest.mark.filterwarnings("ignore")
def test_conditions_are_needed():
    """Where a rule forbids a dimension, some sample gives other numbers on blocks, or raises."""
    needed = {}
    for module, inputs in own_samples():
        name, n = type(module).__name__, inputs[0].dim()
        module.train()
        for d in {d % n for d in SPLIT_RULES[name].whole(module, n) if -n <= d < n}:
            size = inputs[0].shape[d]
            try:
                torch.manual_seed(1)
                whole = flat(module(*inputs))
                torch.manual_seed(1)
                parts = [[x.narrow(d, 0, 1) for x in inputs], [x.narrow(d, 1, size - 1) for x in inputs]]
                blocks = [flat(module(*part)) for part in parts]
                same = all(torch.allclose(put_together(a, b, y, d), y) for y, a, b in zip(whole, *blocks, strict=True))
            except (RuntimeError, ValueError, IndexError, StopIteration):
                same = False
            needed[name] = needed.get(name, False) or not same
    assert [name for name, required in needed.items() if not required] == []
