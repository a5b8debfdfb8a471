"""The contract of layers, by a layer of a user's: options, parameters and buffers in blocks, set-up, one agreement."""

import copy

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of, grid
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values


class FeatureScale(dnn.Layer):
    """input * weight + shift for (batch, features), and how many features there are."""

    tensors = ("input", "shift")

    def __init__(self, P_x, num_features, bias=True, factor=1.0, device=None, dtype=None):
        super().__init__(locals())

    def check_options(self):
        if self.num_features < 1:
            raise ValueError(f"num_features={self.num_features}; it must be at least 1")
        self.setups = 0
        initial = [torch.nn.init.normal_, torch.nn.init.zeros_, torch.nn.init.ones_]
        self.declare_parameter("weight", self.P_x, [self.num_features], [1], initialize=initial[0])
        if self.passed["bias"]:
            self.declare_parameter("bias", self.P_x, [self.num_features], [1], initialize=initial[1])
        else:
            self.register_parameter("bias", None)
        self.declare_buffer(
            "seen", self.P_x, [self.num_features], [1], initialize=initial[2], dtype=self.passed["dtype"]
        )

    def set_up(self):
        self.setups += 1
        features = sum(self.blocks(self.P_x)[1])
        if features != self.num_features:
            raise ValueError(f"FeatureScale: the input has {features} features; expected {self.num_features}")

    def compute(self, input, shift, times=1):
        weight, *bias = self.parameters_in_use()
        if not self.P_x.active:
            return input.clone()
        result = input * weight * (self.factor * times) + shift
        return result + bias[0] if bias else result


def partition(P):
    """Two rows where the number of ranks allows it."""
    rows = 2 if P.size % 2 == 0 else 1
    return grid(P, [rows, P.size // rows])


def test_numbers_parameters_and_buffers(P_world):
    P_x = partition(P_world)
    torch.manual_seed(2)
    layer = FeatureScale(P_x, 5, dtype=torch.float64, factor=2.0)
    torch.manual_seed(2)
    weight = torch.randn(5, dtype=torch.float64)
    state = distdl.sequential_state_dict(layer)
    expected = {"weight": weight, "bias": torch.zeros_like(weight), "seen": torch.ones_like(weight)}
    assert job.rank > 0 or all(same_bits(state[name], value) for name, value in expected.items())
    distdl.load_sequential(layer, {name: value + 1 for name, value in expected.items()})
    assert layer.seen.tolist() == [2.0] * layer.layouts["seen"].used_shape[0]

    x, shift = values([3, 5]), values([3, 5], seed=1)
    y = layer(block_of(x, P_x), block_of(shift, P_x), times=3)
    assert same_bits(assemble(y, P_x, x.shape), x * (weight + 1) * 6.0 + shift + 1)


def test_set_up_when_any_tensor_changes_on_any_rank(P_world):
    P_x = partition(P_world)
    layer = FeatureScale(P_x, 5)
    x = block_of(torch.ones(4, 5), P_x)
    for _ in range(2):
        layer(x, x)
    assert layer.setups == 1
    layer(x, x.double())
    assert layer.setups == 2
    layer(x, x.double(), 2)  # what is no tensor belongs to the structure, too
    assert layer.setups == 3
    with torch.no_grad():
        layer(x, x.double(), 2)
    assert layer.setups == 3  # no plan depends on gradients


def test_mistakes_raise_on_all(P_world):
    P_x, last = partition(P_world), job.rank == job.size - 1
    raises_everywhere(ValueError, "num_features=0", lambda: FeatureScale(P_x, 0 if last else 3))
    raises_everywhere(
        TypeError, "unexpected keyword argument 'eps'", lambda: FeatureScale(P_x, 3, **{"eps": 1} if last else {})
    )
    layer = FeatureScale(P_x, 5)
    x = block_of(torch.ones(4, 5), P_x)
    raises_everywhere(TypeError, "missing a required argument: 'shift'", lambda: layer(x) if last else layer(x, x))
    raises_everywhere(TypeError, f"the shift of rank {job.size - 1} is of type", lambda: layer(x, None if last else x))
    raises_everywhere(ValueError, "4 features; expected 5", lambda: layer(*[block_of(torch.ones(4, 4), P_x)] * 2))
    if job.size > 1:
        raises_everywhere(ValueError, "the ranks differ", lambda: layer(x, x, 2 if last else 1))
        raises_everywhere(ValueError, "different things", lambda: FeatureScale(P_x, 5, factor=2.0 if last else 1.0))
    wrong = torch.nn.Parameter(torch.ones(9))
    layer.weight, kept = wrong if last else layer.weight, layer.weight
    raises_everywhere(ValueError, r"meets a weight of shape \[9\]", lambda: layer(x, x))
    layer.weight = kept
    assert layer(x, x).shape == x.shape


class WithOffset(dnn.Layer):
    """input + offset, a bias of another name."""

    def __init__(self, P_x, bias=True):
        super().__init__(locals())

    def check_options(self):
        to_0 = torch.nn.init.zeros_
        self.declare_parameter("offset", self.P_x, [5], [1], initialize=to_0, exists=self.passed["bias"])


@pytest.mark.parametrize("bias", [True, False])
def test_bias_of_another_name(P_world, bias):
    """Shown as it was passed, and taken from a twin that has it as an option."""
    P_x = partition(P_world)
    assert repr(WithOffset(P_x, bias)) == f"WithOffset(bias={bias}, P_x={P_x})"
    twin = torch.nn.Module()
    twin.bias = bias
    assert WithOffset.options_of(twin) == {"bias": bias}


def test_shown_and_copied(P_world):
    P_x = partition(P_world)
    layer = FeatureScale(P_x, 5, bias=False, factor=3)
    assert repr(layer) == f"FeatureScale(num_features=5, bias=False, factor=3, P_x={P_x})"
    x = block_of(torch.ones(4, 5), P_x)
    layer(x, x)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.weight.fill_(2)
    for _ in range(2):
        assert same_bits(twin(x, x), x * 6 + x)
        assert same_bits(layer(x, x), x * layer.parameters_in_use()[0] * 3 + x)


class Declares(dnn.Layer):
    """Declares a parameter of a shape that is no option."""

    shape = (2, 2)

    def __init__(self, P_x):
        super().__init__(locals())

    def check_options(self):
        self.declare_parameter("weight", self.P_x, self.shape, [None, None])


def test_other_declarations_raise_on_all(P_world):
    if job.size == 1:
        return
    P_x, last = grid(P_world, [job.size]), job.rank == job.size - 1
    other = type("Declares", (Declares,), {"shape": (3, 2)})
    none = type("Declares", (Declares,), {"check_options": lambda self: None})
    for wrong in (other, none):
        raises_everywhere(ValueError, "declared=", lambda wrong=wrong: (wrong if last else Declares)(P_x))


def test_a_parameter_that_is_not_there_raises_on_all(P_world):
    layer, x = Declares(grid(P_world, [job.size])), torch.ones(2)
    if job.rank == job.size - 1:
        del layer.weight
    raises_everywhere(ValueError, "meets a parameter that is not there: .*weight", lambda: layer(x))


def test_names_that_no_option_may_have(P_world):
    class Shadows(dnn.Layer):
        def __init__(self, P_x, tensors=1):
            super().__init__(locals())

    with pytest.raises(TypeError, match="must not be called 'tensors'"):
        Shadows(grid(P_world, [job.size]))


class Undeclared(dnn.Module):
    """A module of a user's with a block that it does not declare."""

    def __init__(self, block):
        super().__init__()
        self.block = torch.nn.Parameter(block)

    def forward(self, x):
        return x


def test_undeclared_blocks_raise_on_all(P_world):
    """By their shapes, or where these are equal, by their values."""
    if job.size == 1:
        return
    conv = dnn.DistributedConv1d(grid(P_world, [1, 1, job.size]), 1, 1, 1)
    for block in (torch.ones(1 + job.rank), torch.full((2,), float(job.rank))):
        model = torch.nn.Sequential(conv, Undeclared(block))
        rule = r"1\.block has other (shapes|values) on rank 1 .*declare_parameter"
        raises_everywhere(ValueError, rule, lambda model=model: distdl.sequential_state_dict(model))
        raises_everywhere(ValueError, rule, lambda model=model: distdl.load_sequential(model, {}))


def test_equal_tensors_need_no_layout(P_world):
    """Neither do torch's own modules, which one rank may train alone."""
    conv = dnn.DistributedConv1d(grid(P_world, [1, 1, job.size]), 1, 1, 1)
    head = torch.nn.Linear(2, 1)
    model = torch.nn.Sequential(conv, Undeclared(torch.ones(2)), head)
    with torch.no_grad():
        head.weight.fill_(job.rank)
    state = distdl.sequential_state_dict(model)
    assert job.rank > 0 or state["2.weight"].tolist() == [[0.0, 0.0]]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_parametrized_blocks_raise_on_all(P_world):
    if job.size == 1:
        return
    layer = dnn.DistributedLinear(
        grid(P_world, [1, 1]), grid(P_world, [1, job.size]), grid(P_world, [job.size, 1]), 3, 4
    )
    torch.nn.utils.parametrizations.weight_norm(layer)
    raises_everywhere(ValueError, "parametrizations.weight.original", lambda: distdl.sequential_state_dict(layer))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("called", [False, True])
def test_what_has_no_values_on_one_rank(P_world, called):
    """Buffers on the meta device, and tensors of torch.func.functionalize."""
    loss = dnn.DistributedCrossEntropyLoss(grid(P_world, [job.size, 1]), weight=torch.ones(3))
    x, target = torch.zeros(2, 3), torch.full((2, 3), 1 / 3)
    if called:
        loss(x, target)
    call = torch.func.functionalize(loss) if job.rank == 1 else loss
    raises_everywhere(TypeError, "transforms of torch.func", lambda: call(x, target))
    loss(x, target)
    if job.rank == 1:
        loss.to("meta")
    raises_everywhere(TypeError, "buffer that has no values", lambda: loss(x, target))
    table = dnn.DistributedEmbedding(grid(P_world, [1, job.size]), 4, 3)
    if job.rank == 0:
        table.weight = torch.nn.Parameter(table.weight.detach().to_sparse())
    raises_everywhere(TypeError, "buffer that has no values", lambda: table(torch.zeros(2, 1).long()))


class Around(dnn.Layer):
    """A layer that looks at values, within another layer."""

    tensors = ("input", "target")

    def __init__(self, P_x):
        super().__init__(locals())

    def prepare(self):
        self.loss = dnn.DistributedNLLLoss(self.P_x)

    def compute(self, input, target):
        return self.loss(input, target)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("called", [False, True])
def test_values_within_another_layer(P_world, called):
    """The agreement of this layer's ranks does not say that all values are right."""
    layer, x, target = Around(grid(P_world, [job.size, 1])), torch.ones(2, 3), torch.tensor([0, 2])
    for rank in (job.size - 1, 0):
        for _ in range(2 * called):
            layer(x, target)
        wrong = target + (job.rank == rank)
        raises_everywhere(ValueError, "has classes from 1 to 3", lambda wrong=wrong: layer(x, wrong))
    layer(x, target)


@pytest.mark.ranks(2, 3)
def test_a_buffer_of_none_that_one_rank_deletes(P_world):
    loss, x = dnn.DistributedBCEWithLogitsLoss(grid(P_world, [job.size])), torch.ones(2)
    loss(x, x)
    if job.rank == 0:
        del loss.pos_weight
    raises_everywhere(ValueError, "the ranks differ", lambda: loss(x, x))


@pytest.mark.ranks(2, 3)
def test_an_argument_too_many_behind_partitions_on_one_rank(P_world):
    """The others' arguments fit, though not in the order of the signature."""
    P_x, P_w = grid(P_world, [1, job.size, 1]), grid(P_world, [1, job.size, 1, 1])
    n, args = 2 * job.size, [1] * (job.rank == 0)
    raises_everywhere(
        TypeError, "multiple values", lambda: dnn.DistributedConv1d(P_x, P_x, P_w, n, n, *args, kernel_size=1, groups=2)
    )


@pytest.mark.ranks(2, 3)
def test_a_tensor_that_one_rank_wraps_for_functionalization(P_world):
    layer, x = dnn.DistributedLinear(grid(P_world, [job.size, 1]), 3, 2), torch.ones(2, 3)
    layer(x).sum().backward()
    wrapped = torch._to_functional_tensor(x) if job.rank == 0 else x
    raises_everywhere(TypeError, "is wrapped for functionalization", lambda: layer(wrapped))


def test_set_up_hooks_run_in_layers_too(P_world):
    """Programs written for DistDL derive from layers, override the hooks, and say that a layer is not set up."""
    calls = []

    class Hooked(dnn.DistributedLinear):
        def _distdl_module_setup(self, input):
            calls.append("setup")
            super()._distdl_module_setup(input)

        def _distdl_module_teardown(self, input):
            calls.append("teardown")

    P = grid(P_world, [job.size, 1])
    layer, x = Hooked(P, 3, 2), torch.ones(2, 3)
    for changed in (x, x, torch.ones(4, 3)):
        layer(changed)
    layer._distdl_is_setup = False
    layer(torch.ones(4, 3))
    assert calls == ["setup", "teardown", "setup", "setup"]
    with pytest.raises(TypeError, match="does not call _distdl_input_changed"):
        type("Other", (dnn.Layer,), {"_distdl_input_changed": lambda self, input: False})
