"""torch's own tools on every layer: one table of tools and examples.

Each tool gives what a call without it gives, bit for bit, or refuses the layer on all of its ranks. A job runs a share
of each tool's examples, always the same; with --whole it runs all of them.
"""

import contextlib
import copy
import functools

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import distdl.nn as dnn
from support.blocks import grid
from support.checkpoints import keep_all, keep_some, selective
from support.families import EXAMPLES, splits, windows
from support.ranks import job, together
from support.sequential import as_tuple, block, close, joined_blocks
from support.tensors import same_bits, values

pytestmark = [
    # Of torch's own modules, which it imports when it compiles, and of complex numbers, which it does not compile.
    pytest.mark.filterwarnings("ignore:`torch.jit.script", "ignore:.*:DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex"),
    pytest.mark.ranks(1, 2),
]
every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
OF_SET_UP = ["ConstantPad2d", "Conv2d around", "Upsample"]  # they compute with tensors that their set-up makes
assert {*OF_SET_UP} <= {*EXAMPLES}


class Case:
    """A layer of an example on all ranks, and this rank's blocks of a call."""

    def __init__(self, P_world, example, training=None, shape=None):
        self.P, self.example = grid(P_world, shape or splits(example)[-1]), example
        self.layer = self.another()
        if training is not None:
            self.layer.train(training)
        self.inputs = self.blocks(example.inputs())
        chosen = example.differentiable
        floats = [i for i, x in enumerate(self.inputs) if x.is_floating_point() or x.is_complex()]
        self.chosen = floats if chosen is None else [i for i in chosen if i in floats]

    def blocks(self, wholes):
        return [block(x.detach(), self.P, cut) for x, cut in zip(wholes, self.example.cuts, strict=True)]

    def leaves(self, inputs):
        inputs = [x.clone() for x in inputs]
        return [x.requires_grad_(i in self.chosen) for i, x in enumerate(inputs)]

    def called(self, call, inputs):
        """The results of a call, which draws the same numbers each time."""
        torch.manual_seed(3)
        return as_tuple(call(*inputs, **self.example.call))

    def trained(self, call, module, inputs=None, within=contextlib.nullcontext):
        """The results of a call and all gradients. `module` has the parameters that the call uses."""
        inputs = self.leaves(self.inputs if inputs is None else inputs)
        with within():
            results = self.called(call, inputs)
        graph = [y for y in results if y.requires_grad]
        gradients = [values(y.shape, y.dtype, seed=i) - 1.5 for i, y in enumerate(graph)]
        if graph:
            with within():
                torch.autograd.backward(graph, gradients)
        leaves = [*inputs, *module.parameters()]
        derivatives = [None if x.grad is None else x.grad.detach().clone() for x in leaves]
        module.zero_grad()
        return [y.detach() for y in results], derivatives

    def another(self):
        """Another layer, with the same parameters."""
        layer = self.example.make(self.example.twin(), self.P)
        layer._forward_pre_hooks.clear()  # of examples that draw: here `called` sets the seed
        return layer

    def expected(self):
        """The result of training without a tool."""
        plain = self.another()
        return self.trained(plain, plain)


def assert_same(actual, expected, equal=same_bits):
    """On all ranks. A gradient of zeros may be left out."""

    def same(a, b):
        return not (a if b is None else b).any() if a is None or b is None else equal(a, b)

    fits = [[(a is b) or same(a, b) for a, b in zip(*pair, strict=True)] for pair in zip(actual, expected, strict=True)]
    assert all(all(map(all, parts)) for parts in together(fits)), (fits, actual, expected)


def refused(kind, match, case, action):
    """On all ranks of the layer; the others, which agree on nothing, may go on."""
    outcome = None
    try:
        action()
    except Exception as error:
        outcome = (type(error), str(error).split(" (raised on rank")[0])
    agreement = case.layer.agreement
    outcomes = [
        result for takes_part, result in together((agreement is not None and agreement.active, outcome)) if takes_part
    ]
    assert len(set(outcomes)) == 1, outcomes
    assert outcomes[0] is not None, "not refused"
    assert issubclass(outcomes[0][0], kind), outcomes[0]
    assert match in outcomes[0][1], outcomes[0]


@pytest.mark.drawn(6)
@pytest.mark.usefixtures("fresh_compiler")
@every_example
def test_compile(P_world, example):
    case = Case(P_world, example)
    expected = case.expected()
    assert_same(case.trained(torch.compile(case.layer, fullgraph=True, backend="aot_eager"), case.layer), expected)


@pytest.mark.drawn(5)
@pytest.mark.usefixtures("fresh_compiler")
@every_example
def test_export(P_world, example):
    case = Case(P_world, example, training=False)
    program = torch.export.export(case.layer, tuple(case.inputs), dict(example.call)).module()
    assert_same([case.called(program, case.inputs)], [case.called(case.layer, case.inputs)])


@pytest.mark.drawn(15)
@every_example
def test_func_is_refused(P_world, example):
    """torch.func.grad of inputs and of parameters, jvp, vmap: a TypeError on all ranks. A plain call works after it."""
    case = Case(P_world, example)
    call = functools.partial(case.layer, **example.call)
    words = "transforms of torch.func"
    if case.inputs[0].is_floating_point():
        of_first = torch.func.grad(lambda x: sum(y.sum() for y in as_tuple(call(x, *case.inputs[1:]))))
        refused(TypeError, words, case, lambda: of_first(case.inputs[0]))
        of_all = functools.partial(torch.func.jvp, lambda x: call(x, *case.inputs[1:]))
        refused(TypeError, words, case, lambda: of_all((case.inputs[0],), (torch.ones_like(case.inputs[0]),)))
    if parameters := {name: p.detach() for name, p in case.layer.named_parameters()}:
        of_parameters = torch.func.grad(
            lambda them: sum(
                y.sum() for y in as_tuple(functional_call(case.layer, them, tuple(case.inputs), example.call))
            )
        )
        refused(TypeError, words, case, lambda: of_parameters(parameters))
    batch = torch.func.vmap(lambda x: call(x, *case.inputs[1:]), randomness="same")
    refused(TypeError, words, case, lambda: batch(torch.stack([case.inputs[0]] * 2)))
    assert_same(case.trained(case.layer, case.layer), case.expected())


@pytest.mark.drawn(20)
@every_example
def test_forward_mode(P_world, example):
    """The tangents, put together, equal the twin's; where torch has none, all ranks raise."""
    case, twin = Case(P_world, example), example.twin()
    wholes = [x.detach() for x in example.inputs()]
    tangents = [values(x.shape, seed=5 + i) - 1.5 for i, x in enumerate(wholes)]

    def slopes(call, inputs, tangents):
        # Of torch's kernels of attention, this alone has forward derivatives.
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            pairs = enumerate(zip(inputs, tangents, strict=True))
            duals = [forward_ad.make_dual(x, t) if i in case.chosen else x for i, (x, t) in pairs]
            return [forward_ad.unpack_dual(y).tangent for y in case.called(call, duals)]

    if example is EXAMPLES["CosineSimilarity of short vectors"]:
        return  # torch's own modes differ below eps
    try:
        expected = slopes(twin, wholes, tangents)
    except NotImplementedError:
        refused(NotImplementedError, "forward", case, lambda: slopes(case.layer, case.inputs, case.blocks(tangents)))
        return
    if "Dropout" in type(twin).__name__ and twin.training:
        return  # other masks than torch draws
    local_slopes = slopes(case.layer, case.inputs, case.blocks(tangents))
    results = as_tuple(twin(*wholes, **example.call))
    for slope, whole, y, cut in zip(local_slopes, expected, results, example.results, strict=True):
        whole = torch.zeros_like(y) if whole is None else whole.detach()
        slope = torch.zeros_like(block(y, case.P, cut, None, example.first_of)) if slope is None else slope.detach()
        # The slope of a number that all ranks have counts once, as its gradient does.
        joined = joined_blocks(slope, case.P, y.shape, cut, None, example.first_of)
        assert close(joined, whole, 10 * example.tolerance), (joined, whole)


@pytest.mark.ranks(2)
@pytest.mark.drawn(40)
@every_example
def test_forward_mode_on_one_rank(P_world, example):
    """All ranks have results, or none; so they have after it."""
    case = Case(P_world, example)
    with forward_ad.dual_level():
        chosen = case.chosen if job.rank == 1 else []
        inputs = [forward_ad.make_dual(x, x.clone()) if i in chosen else x for i, x in enumerate(case.inputs)]
        try:
            case.called(case.layer, inputs)
            outcome = None
        except NotImplementedError as error:
            outcome = str(error)
    assert len({*together(outcome)}) == 1, outcome
    case.called(case.layer, case.inputs)


CHECKPOINTS = {
    "reentrant": {"use_reentrant": True},
    "not reentrant": {"use_reentrant": False},
    "all kept": selective(keep_all),
    "some kept": selective(keep_some),
}


@pytest.mark.drawn(40, *(f"{name}-some kept" for name in OF_SET_UP))
@pytest.mark.parametrize("options", CHECKPOINTS.values(), ids=CHECKPOINTS)
@every_example
def test_checkpoint(P_world, example, options):
    """Around a layer that is set up in that call, behind an operation of torch."""
    if options is CHECKPOINTS["all kept"] and example not in windows.EXAMPLES.values():
        return  # torch refuses to keep what is written in place, as functions of its own and of ours do
    case = Case(P_world, example)
    leaf = torch.ones((), requires_grad=True)  # reentrant checkpoints want an input that requires gradients

    def after_torch(call, inputs, keywords):
        return call(*(x * 1 if i in case.chosen else x for i, x in enumerate(inputs)), **keywords)

    def checkpointed(call):
        def run(*inputs, **keywords):
            return checkpoint(lambda _, *inputs: after_torch(call, inputs, keywords), leaf, *inputs, **options)

        return run

    plain = case.another()
    expected = case.trained(lambda *inputs, **keywords: after_torch(plain, inputs, keywords), plain)
    results = case.trained(checkpointed(case.layer), case.layer)
    # The first pass of a reentrant checkpoint records no gradients, for which torch has other kernels.
    reentrant = options is CHECKPOINTS["reentrant"]
    assert_same(results, expected, functools.partial(close, tolerance=example.tolerance) if reentrant else same_bits)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["SpectralConv2d in parts", "SpectralConv4d"])
def test_views_that_are_kept(P_world, name):
    """A constant that was written through a view would not be written when its view comes from the first call."""
    for shape in splits(EXAMPLES[name]):
        case = Case(P_world, EXAMPLES[name], shape=shape)
        assert_same(
            case.trained(lambda *xs, layer=case.layer: checkpoint(layer, *xs, **selective(keep_some)), case.layer),
            case.expected(),
        )


@pytest.mark.drawn(15, *OF_SET_UP)
@every_example
def test_inference_then_training(P_world, example):
    case = Case(P_world, example)
    with torch.inference_mode():
        case.called(case.layer, case.inputs)
    assert_same(case.trained(case.layer, case.layer), case.expected())


@pytest.mark.drawn(20)
@every_example
def test_inputs_written_after_a_call(P_world, example):
    """The backward pass raises, as torch's may, or gives the gradients of what was passed; never others."""
    case = Case(P_world, example)
    expected = case.expected()

    def written(i, *inputs, **keywords):
        inputs = [x * 1 if k in case.chosen else x.clone() for k, x in enumerate(inputs)]
        results = case.layer(*inputs, **keywords)
        with torch.no_grad():
            inputs[i].copy_(inputs[i].flatten().flip(0).view_as(inputs[i]))
        return results

    for i in range(len(case.inputs)):
        raised, outcome = "", expected
        try:
            outcome = case.trained(functools.partial(written, i), case.layer)
        except RuntimeError as error:
            raised = str(error)
            case.layer.zero_grad()
        assert not raised or "modified by an inplace operation" in raised
        assert_same(outcome[1:], expected[1:])  # not the results, which may be views of what is written


@pytest.mark.drawn(15)
@every_example
def test_deepcopy(P_world, example):
    """Copies of a layer that was called and of a layer that was not; they share no parameters."""
    case = Case(P_world, example)
    expected = case.expected()
    first = copy.deepcopy(case.layer)
    assert_same(case.trained(case.layer, case.layer), expected)
    second = copy.deepcopy(case.layer)
    with torch.no_grad():
        for parameter in case.layer.parameters():
            parameter.zero_()
    for layer in (first, second):
        assert_same(case.trained(layer, layer), expected)


@pytest.mark.drawn(10)
@every_example
def test_averaged_model(P_world, example):
    case = Case(P_world, example, training=False)
    if not list(case.layer.parameters()):
        return  # torch averages none
    averaged = torch.optim.swa_utils.AveragedModel(case.layer)
    averaged.update_parameters(case.layer)
    assert_same([case.called(averaged, case.inputs)], [case.called(case.layer, case.inputs)])
    with torch.no_grad():
        for parameter in case.layer.parameters():
            parameter.mul_(3)
    averaged.update_parameters(case.layer)
    with torch.no_grad():
        for parameter in case.layer.parameters():
            parameter.div_(3).mul_(2)
    results, expected = case.called(averaged, case.inputs), case.called(case.layer, case.inputs)
    assert all(torch.allclose(a, b, equal_nan=True) for a, b in zip(results, expected, strict=True))


@pytest.mark.drawn(8)
@every_example
def test_profiler(P_world, example, capfd):
    case = Case(P_world, example)
    expected = case.expected()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True, acc_events=True):
        results = case.trained(case.layer, case.layer)
    assert_same(results, expected)
    assert "skipping" not in capfd.readouterr().err


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


DEFAULTS = {
    "device": functools.partial(torch.device, "meta"),
    "float64": functools.partial(default_dtype, torch.float64),
    "float16": functools.partial(default_dtype, torch.float16),
}


@pytest.mark.drawn(40)
@pytest.mark.parametrize("context", DEFAULTS.values(), ids=DEFAULTS)
@every_example
def test_other_defaults_on_one_rank(P_world, example, context):
    """The results of a call do not depend on the device and the dtype that torch takes where none is said."""
    case = Case(P_world, example)
    within = context if job.rank == job.size - 1 else contextlib.nullcontext
    for _ in range(2):  # set up in the first of them
        assert_same(case.trained(case.layer, case.layer, within=within), case.expected())


@pytest.mark.drawn(30)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, of its RMSNorm
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@every_example
def test_autocast(P_world, example, dtype):
    """The dtypes that torch.nn gives under autocast, of inputs in any precision; gradients where it has gradients."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def cast(tensors):
        return [x.detach().to(dtype) if x.is_floating_point() else x for x in tensors]

    case = Case(P_world, example)
    kind = dtype if dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    wholes, own = case.leaves(cast(example.inputs())), case.leaves(cast(case.inputs))
    with torch.autocast("cpu", kind):
        try:
            expected = as_tuple(example.twin().to(wide)(*wholes, **example.call))
        except (RuntimeError, NotImplementedError):  # torch has no kernel
            return
        results = case.called(example.make(example.twin().to(wide), case.P), own)
    assert [y.dtype for y in results] == [y.dtype for y in expected]
    for outputs in (expected, results):
        graph = [y for y in outputs if y.requires_grad]
        torch.autograd.backward(graph, [torch.linspace(1, 9, y.numel()).square().reshape(y.shape).to(y) for y in graph])
    for whole, leaf in zip(wholes, own, strict=True):
        has_gradient = leaf.grad is not None and bool(leaf.grad.any())
        assert any(together(has_gradient)) == (whole.grad is not None and bool(whole.grad.any()))


SINGLE_OF_HALF = {
    "reflect": (torch.nn.ReflectionPad2d((1, 2, 1, 0)), 4),
    "replicate": (torch.nn.ReplicationPad2d((1, 2, 1, 0)), 4),
    "MaxPool3d": (torch.nn.MaxPool3d(2, 1), 5),
    "AvgPool3d": (torch.nn.AvgPool3d(2, 1), 5),
    "LPPool3d": (torch.nn.LPPool3d(2, 2, 1), 5),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("twin", "dims"), SINGLE_OF_HALF.values(), ids=SINGLE_OF_HALF)
def test_single_precision_of_half_under_autocast(P_world, twin, dims, dtype):
    """Of these functions torch's autocast gives float32."""
    P_x, x = grid(P_world, [1, 1, job.size, *[1] * (dims - 3)]), values([1, 2, *[4] * (dims - 2)], dtype)
    layer = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x)
    with torch.autocast("cpu", torch.bfloat16):
        expected, y = twin(x), layer(block(x, P_x, range(dims)))
    assert y.dtype == expected.dtype == torch.float32
    assert torch.allclose(torch.cat(together(y), 2), expected, rtol=1e-6, atol=0)
