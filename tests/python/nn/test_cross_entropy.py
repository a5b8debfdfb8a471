"""The distributed cross entropy, and what computes it from features, against torch.nn's."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

import distdl
import distdl.nn as dnn
from distdl.nn import DistributedCrossEntropyLoss, DistributedLinear, DistributedMSELoss
from support.blocks import assemble, block_of, block_slices, blocks_of, grid, grid_shapes
from support.ranks import job, on_all_ranks, raises_everywhere

REDUCTIONS = ["mean", "sum", "none"]
reductions = st.sampled_from(REDUCTIONS)
ranks = st.permutations(range(job.size))


def first_and_second(loss, x, scale):
    """The gradient of scale * loss^2 with respect to x, and the gradient of the sum of its squares."""
    (gradient,) = torch.autograd.grad((scale * loss**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    return gradient.detach(), second


def assert_like(layer, twin, P_x, x, target, my_target, sizes=None, P_loss=None, axis=None):
    """Loss and derivatives equal the twin's, on all ranks; blocks are put together."""
    whole = x.clone().requires_grad_()
    expected = twin(whole, target)
    part = block_of(x, P_x, sizes).requires_grad_()
    loss = layer(part, my_target)
    tolerance = {"rtol": 1e-12, "atol": 1e-12, "equal_nan": True}
    if layer.reduction == "none":
        sizes_of_loss = sizes and [s for d, s in enumerate(sizes) if d != axis]
        together = assemble(loss, P_loss, expected.shape, sizes_of_loss)
        torch.testing.assert_close(together, expected.detach(), **tolerance)
    else:
        assert loss.shape == ()
        torch.testing.assert_close(loss.detach(), expected.detach(), **tolerance)
        assert len(set(job.allgather(str(loss.item())))) == 1
    for block, reference in zip(first_and_second(loss, part, 3.0), first_and_second(expected, whole, 3.0), strict=True):
        together = assemble(block, P_x, x.shape, sizes)
        largest = max(1.0, float(reference.nan_to_num(0.0, 0.0, 0.0).abs().max()))  # of terms that cancel
        torch.testing.assert_close(together, reference, rtol=0, atol=1e-12 * largest, equal_nan=True)


def without(P, axis):
    """The workers of P with the first classes, as a partition without the dimension of the classes."""
    first = [w for w in range(P.size) if P.cartesian_index(w)[axis] == 0]
    shape = [int(n) for d, n in enumerate(P.shape) if d != axis]
    return P.create_partition_inclusive(first).create_cartesian_topology_partition(shape)


@given(st.data())
@on_all_ranks
def test_equals_cross_entropy_loss(P_world, data):
    """All options at once, any partition: of the classes too."""
    dim = data.draw(st.integers(1, 4))
    axis = 0 if dim == 1 else 1
    workers = data.draw(st.sampled_from(grid_shapes(dim, job.size)))
    P_x = grid(P_world, workers, data.draw(ranks)[: int(torch.tensor(workers).prod())])
    shape = data.draw(st.lists(st.integers(1, 4), min_size=dim, max_size=dim))
    classes = shape[axis]
    others = [n for d, n in enumerate(shape) if d != axis]
    sizes = data.draw(blocks_of(shape, workers))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    x = 5 * torch.randn(shape, dtype=torch.float64, generator=generator)
    options = {
        "reduction": data.draw(reductions),
        "label_smoothing": data.draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
        "weight": torch.rand(classes, dtype=torch.float64, generator=generator) if data.draw(st.booleans()) else None,
    }
    if data.draw(st.booleans()):
        target = torch.rand(shape, dtype=torch.float64, generator=generator)
        local_target = block_of(target, P_x, sizes)
    else:
        options["ignore_index"] = data.draw(st.sampled_from([-100, -1, 0]))
        target = torch.randint(classes, others, generator=generator)
        target[torch.rand(others, generator=generator) < 0.2] = options["ignore_index"]
        local_target = distdl.zero_volume_tensor(dtype=torch.int64)
        if P_x.active:
            local_target = target[tuple(s for d, s in enumerate(block_slices(P_x, shape, sizes)) if d != axis)]
    layer, twin = DistributedCrossEntropyLoss(P_x, **options), torch.nn.CrossEntropyLoss(**options)
    assert_like(layer, twin, P_x, x, target, local_target, sizes, without(P_x, axis), axis)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("outside", [torch.float32, torch.int64], ids=str)
def test_narrow_dtypes(P_world, dtype, outside):
    """Sums are in single precision at least, and counts exact: 300 is no bfloat16, 70000 no half."""
    P_x = grid(P_world, [1, max(job.size - 1, 1)])
    x, target = torch.randn(2, 300, 25, generator=torch.Generator().manual_seed(0)).mul(20).to(dtype)
    expected = torch.nn.MSELoss()(x.double(), target.double()).to(dtype)
    blocks = [block_of(t, P_x) if P_x.active else torch.empty(0, dtype=outside) for t in (x, target)]
    loss = DistributedMSELoss(P_x)(*blocks)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.double(), expected.double(), rtol=torch.finfo(dtype).eps, atol=0)

    logits, classes = x.T.contiguous().T, torch.arange(300) % 25
    expected = torch.nn.CrossEntropyLoss()(logits.double(), classes).to(dtype)
    loss = DistributedCrossEntropyLoss(P_x)(block_of(logits, P_x), classes if P_x.active else torch.empty(0))
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.double(), expected.double(), rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
@pytest.mark.parametrize("split", [False, True])
def test_an_impossible_class(P_world, split, smoothing):
    """A logit of -inf is a probability of 0, wherever the classes are; smoothed, the loss is torch's."""
    P_x = grid(P_world, [1, job.size] if split else [job.size, 1])
    x = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]] * 4, dtype=torch.float64)
    target = torch.tensor([1, 2, 1, 2])
    layer = DistributedCrossEntropyLoss(P_x, label_smoothing=smoothing)
    twin = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)
    block, whole = block_of(x, P_x).requires_grad_(), x.clone().requires_grad_()
    loss, expected = layer(block, target if split else block_of(target, grid(P_world, [job.size]))), twin(whole, target)
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0, equal_nan=True)
    if smoothing:
        return  # the gradients of a loss that is no number
    loss.backward()
    expected.backward()
    torch.testing.assert_close(assemble(block.grad, P_x, x.shape), whole.grad, rtol=1e-14, atol=1e-15)


def test_backward_counts_once_and_goes_through_ranks_outside(P_world):
    """The loss is on the last rank alone; the layer before it is on all."""
    P_all, P_last = grid(P_world, [1, job.size]), grid(P_world, [1, 1], [job.size - 1])
    torch.manual_seed(3)
    twin = torch.nn.Linear(6, 5, dtype=torch.float64)
    torch.manual_seed(3)
    layer = DistributedLinear(P_all, P_last, P_all, 6, 5, dtype=torch.float64)
    x, target = torch.randn(2, 4, 6, dtype=torch.float64)[0], torch.arange(4)
    criterion = DistributedCrossEntropyLoss(P_last)
    loss = criterion(layer(block_of(x, P_all)), target if P_last.active else torch.empty(0))
    (2 * loss).backward()
    expected = torch.nn.CrossEntropyLoss()(twin(x), target)
    (2 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    gradient = assemble(layer.weight.grad, P_all, [5, 6])
    torch.testing.assert_close(gradient, twin.weight.grad, rtol=1e-13, atol=1e-15)


def test_weight_is_in_the_state(P_world):
    """As it is in torch.nn's."""
    P_x = grid(P_world, [1, job.size])
    twin = torch.nn.CrossEntropyLoss(weight=torch.arange(3.0))
    assert DistributedCrossEntropyLoss(P_x, weight=torch.arange(3.0)).state_dict().keys() == twin.state_dict().keys()
    assert DistributedCrossEntropyLoss(P_x).state_dict() == {}


def test_bad_options_raise_on_all(P_world):
    P_x = grid(P_world, [1, job.size])
    last = job.rank == job.size - 1
    for layer in (DistributedMSELoss, DistributedCrossEntropyLoss):
        wrong = lambda layer=layer: layer(P_x, reduction="average" if last else "mean")  # noqa: E731
        raises_everywhere(ValueError, "reduction='average'", wrong)
    raises_everywhere(
        ValueError, "in \\[0, 1\\]", lambda: DistributedCrossEntropyLoss(P_x, label_smoothing=2.0 if last else 0.0)
    )
    raises_everywhere(ValueError, "needs a dimension", lambda: DistributedCrossEntropyLoss(grid(P_world, [])))
    if job.size > 1:
        weight = torch.ones(2) if last else torch.zeros(2)
        raises_everywhere(
            ValueError, "ask for different things", lambda: DistributedCrossEntropyLoss(P_x, weight=weight)
        )


WRONG_TARGETS = {
    "class too large": ("has classes from 0 to 3; the logits are of 3", torch.tensor([0, 3])),
    "class too small": ("has classes from -1 to 0; the logits are of 3", torch.tensor([-1, 0])),
    "int32": ("int64 or uint8|same dtypes", torch.zeros(2, dtype=torch.int32)),
    "half": ("dtype", torch.zeros(2, 3, dtype=torch.half)),
    "shape": ("without the classes", torch.zeros(3, dtype=torch.int64)),
    "no tensor": ("has to be a torch.Tensor", [0, 1]),
}


@pytest.mark.parametrize(("match", "bad"), WRONG_TARGETS.values(), ids=WRONG_TARGETS)
@pytest.mark.parametrize("weight", [None, torch.ones(3)], ids=["", "weighted"])
def test_a_wrong_target_on_one_rank_raises_on_all(P_world, match, bad, weight):
    P_x = grid(P_world, [job.size, 1])
    layer, logits, good = DistributedCrossEntropyLoss(P_x, weight=weight), torch.zeros(2, 3), torch.tensor([0, -100])
    layer(logits, good)
    last = job.rank == job.size - 1
    raises_everywhere((TypeError, ValueError), match, lambda: layer(logits, bad if last else good))
    assert torch.isclose(layer(logits, good), torch.tensor(3.0).log())


def test_a_wrong_target_raises_on_ranks_outside_too(P_world):
    P_last = grid(P_world, [1, 1], [job.size - 1])
    layer = DistributedCrossEntropyLoss(P_last)
    logits = torch.zeros(2, 3) if P_last.active else distdl.zero_volume_tensor()
    good = torch.tensor([0, 1]) if P_last.active else distdl.zero_volume_tensor()
    bad = torch.tensor([0, 3]) if P_last.active else good
    raises_everywhere(ValueError, "the logits are of 3 classes", lambda: layer(logits, bad))
    raises_everywhere(ValueError, "has to have the same|shape of the logits", lambda: layer(logits, logits[:1]))
    raises_everywhere(TypeError, "has to be a torch.Tensor", lambda: layer(logits, None if job.rank == 0 else good))
    assert torch.isclose(layer(logits, good), torch.tensor(3.0).log())
    squares = DistributedMSELoss(P_last)
    raises_everywhere(ValueError, "shapes must be equal", lambda: squares(logits, logits[..., :1]))
    raises_everywhere(ValueError, "floating point", lambda: squares(logits.to(torch.cfloat), logits.to(torch.cfloat)))
    raises_everywhere(ValueError, "floating point", lambda: squares(logits, logits.long()))


def test_probabilities_and_an_ignored_class(P_world):
    """No class can be ignored where targets are probabilities: as in torch.nn, unless its number is negative."""
    P_x = grid(P_world, [job.size, 1])
    logits = torch.zeros(2, 3)
    layer = DistributedCrossEntropyLoss(P_x, ignore_index=1)
    raises_everywhere(ValueError, "ignore_index=1 is not supported", lambda: layer(logits, torch.ones(2, 3) / 3))
    assert torch.isclose(DistributedCrossEntropyLoss(P_x)(logits, torch.ones(2, 3) / 3), torch.tensor(3.0).log())


@pytest.mark.parametrize("split", [False, True])
def test_class_indices_of_eight_bits(P_world, split):
    """No uint8 is the negative number that is ignored by default, 156 neither."""
    P_x = grid(P_world, [1, job.size] if split else [job.size, 1])
    logits, target = (
        torch.randn(job.size, 200, generator=torch.Generator().manual_seed(0)),
        torch.full((job.size,), 156),
    )
    labels = target[block_slices(P_x, logits.shape)[:1]].to(torch.uint8)
    for ignored in (-100, 156):
        value = DistributedCrossEntropyLoss(P_x, reduction="sum", ignore_index=ignored)(block_of(logits, P_x), labels)
        expected = torch.nn.functional.cross_entropy(logits, target, reduction="sum", ignore_index=ignored)
        assert torch.allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["CrossEntropyLoss", "NLLLoss"])
@pytest.mark.parametrize("shape", [(4, 3, 4), (4, 3, 4, 2)], ids=str)
def test_class_indices_of_eight_bits_of_positions(P_world, shape, kind):
    """Which torch refuses of inputs in more than two dimensions."""
    P_x, P_t = (grid(P_world, [job.size, *[1] * count]) for count in (len(shape) - 1, len(shape) - 2))
    logits, target = torch.zeros(shape), torch.zeros(shape[0], *shape[2:], dtype=torch.uint8)
    match = "expected scalar type Long but found Byte"
    with pytest.raises(RuntimeError, match=match):
        getattr(torch.nn, kind)()(logits, target)
    layer = dnn.SEQUENTIAL[getattr(torch.nn, kind)](P_x)
    raises_everywhere(RuntimeError, match, lambda: layer(block_of(logits, P_x), block_of(target, P_t)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_keeps_single_precision(P_world, dtype):
    P_x = grid(P_world, [job.size, 1])
    logits, target = torch.ones(2, 3, dtype=dtype), torch.zeros(2, dtype=torch.int64)
    with torch.autocast("cpu", dtype=dtype):
        assert DistributedCrossEntropyLoss(P_x)(logits, target).dtype == torch.float32
        assert DistributedMSELoss(P_x)(logits, logits).dtype == torch.float32
        assert DistributedMSELoss(P_x, reduction="none")(logits, logits).dtype == torch.float32
    assert DistributedCrossEntropyLoss(P_x)(logits, target).dtype == dtype


def test_wrong_logits_raise_on_all(P_world):
    P_x = grid(P_world, [job.size, 1])
    last = job.rank == job.size - 1
    layer, target = DistributedCrossEntropyLoss(P_x, weight=torch.ones(2)), torch.zeros(2, dtype=torch.int64)
    for bad, match in [
        (torch.zeros(2), "dimensions"),
        (torch.zeros(2, 3), "classes|a block of shape"),
        (torch.zeros(2, 2, dtype=torch.int64), "int64"),
    ]:
        raises_everywhere(ValueError, match, lambda bad=bad: layer(bad if last else torch.zeros(2, 2), target))
    raises_everywhere(
        ValueError, "shapes must be equal", lambda: DistributedMSELoss(P_x)(torch.ones(2, 1), torch.ones(2))
    )
    assert torch.isclose(layer(torch.zeros(2, 2), target), torch.tensor(2.0).log())


SPECIAL = {
    "impossible classes": lambda x: x.masked_fill(torch.arange(6) % 3 == 0, -torch.inf),
    "impossible classes on one worker": lambda x: x.masked_fill(torch.arange(6) < 3, -torch.inf),
    "a row of impossible classes": lambda x: torch.cat([torch.full_like(x[:1], -torch.inf), x[1:]]),
    "nan": lambda x: x.masked_fill(torch.arange(24).view(4, 6) == 8, torch.nan),
    "inf": lambda x: x.masked_fill(torch.arange(24).view(4, 6) == 8, torch.inf),
    "large": lambda x: x + 1e8,
}


@pytest.mark.parametrize("change", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("kind", ["CrossEntropyLoss", "LogSoftmax", "Softmax", "Softmin"])
def test_special_values(P_world, change, kind):
    """As torch treats them, wherever the classes are; the gradients, too."""
    P_x = grid(P_world, [1, job.size])
    x = change(torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    twin = getattr(torch.nn, kind)(**({"reduction": "sum"} if "Loss" in kind else {"dim": 1}))
    layer = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x)
    targets = [torch.tensor([4, 5, -100, 4])] if "Loss" in kind else []
    block, whole = block_of(x, P_x).requires_grad_(), x.clone().requires_grad_()
    y, expected = layer(block, *targets), twin(whole, *targets)
    close = {"rtol": 1e-13, "atol": 1e-15, "equal_nan": True}
    together = y if "Loss" in kind else assemble(y, P_x, x.shape)
    torch.testing.assert_close(together.detach(), expected.detach(), **close)
    y.backward(torch.ones_like(y))
    expected.backward(torch.ones_like(expected))
    torch.testing.assert_close(assemble(block.grad, P_x, x.shape), whole.grad, **close)


@pytest.mark.parametrize("kind", ["CrossEntropyLoss", "NLLLoss"])
def test_images_in_another_order_of_memory(P_world, kind):
    """On one rank alone, where torch's backward pass would refuse them."""
    P_x = grid(P_world, [job.size, 1, 1, 1])
    x = torch.randn(2 * job.size, 3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    target = torch.arange(2 * job.size).view(-1, 1, 1).expand(-1, 2, 4) % 3
    twin = getattr(torch.nn, kind)()
    block, whole = block_of(x, P_x), x.clone().requires_grad_()
    if job.rank == 0:
        block = block.contiguous(memory_format=torch.channels_last)
    block.requires_grad_()
    loss = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x)(
        block, block_of(target, grid(P_world, [job.size, 1, 1]))
    )
    torch.testing.assert_close(loss, twin(whole, target))
    loss.backward()
    twin(whole, target).backward()
    torch.testing.assert_close(block.grad, block_of(whole.grad, P_x))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", ["CrossEntropyLoss", "NLLLoss"])
@pytest.mark.parametrize("weight", [None, torch.zeros(6, dtype=torch.float64)], ids=["", "no weight"])
def test_a_mean_of_nothing(P_world, split, kind, weight):
    """nan, with the gradient that torch gives."""
    P_x = grid(P_world, [1, job.size] if split else [job.size, 1])
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    target = torch.full((4,), -100) if weight is None else torch.tensor([0, 5, 2, 3])
    twin = getattr(torch.nn, kind)(weight)
    layer = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x)
    block, whole = block_of(x, P_x).requires_grad_(), x.clone().requires_grad_()
    loss = layer(block, target if split else block_of(target, grid(P_world, [job.size])))
    assert loss.isnan()
    assert twin(whole, target).isnan()
    loss.backward()
    twin(whole, target).backward()
    torch.testing.assert_close(assemble(block.grad, P_x, x.shape), whole.grad, equal_nan=True, rtol=0, atol=0)


def test_large_logits_keep_their_digits(P_world):
    """In single precision, with logits of which the differences count."""
    P_x = grid(P_world, [1, job.size])
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(2)).round(decimals=2) + 4096
    target = torch.arange(5)
    exact = torch.nn.functional.cross_entropy(x.double(), target)
    loss = DistributedCrossEntropyLoss(P_x)(block_of(x, P_x), target)
    torch.testing.assert_close(loss.double(), exact, rtol=4 * torch.finfo(torch.float32).eps, atol=0)


class LinearCrossEntropy(torch.nn.Module):
    """torch.nn.LinearCrossEntropyLoss, which torch has from 2.13 on."""

    def __init__(self, out_features):
        super().__init__()
        self.classes = (9, *out_features)
        self.linear = torch.nn.Linear(7, math.prod(self.classes), dtype=torch.float64)

    def forward(self, input, target):
        return torch.nn.functional.cross_entropy(self.linear(input).unflatten(-1, self.classes), target)


@pytest.mark.parametrize("out_features", [(), (2,)])
@pytest.mark.parametrize("layout", ["owner", "sharded", "replicated"])
def test_linear_cross_entropy_over_split_features_and_classes(P_world, out_features, layout):
    """Neither the features nor, without out_features, the logits are whole anywhere."""
    torch.manual_seed(0)
    twin = LinearCrossEntropy(out_features)
    x, target = torch.randn(3, 7, dtype=torch.float64), torch.randint(9, (3, *out_features))
    P_x, P_y = grid(P_world, [1, job.size]), grid(P_world, [1, 1 if out_features else job.size])
    P_W = P_x if out_features else grid(P_world, [job.size, 1])
    if not out_features:
        P_x = grid(P_world, [1, 1])
    with distdl.parameter_layout(layout):
        layer = dnn.DistributedLinearCrossEntropyLoss(
            P_x, 7, 9, out_features=out_features, bias=True, dtype=torch.float64, P_y=P_y, P_W=P_W
        )
    distdl.load_sequential(layer, twin.state_dict())
    block, whole = block_of(x, P_x).requires_grad_(), x.clone().requires_grad_()
    loss, expected = layer(block, target if P_y.active else torch.empty(0)), twin(whole, target)
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(assemble(block.grad, P_x, x.shape), whole.grad, rtol=1e-12, atol=1e-14)
    for parameter in layer.parameters():
        parameter.data = parameter.grad
    gradients = distdl.sequential_state_dict(layer)
    for name, parameter in twin.named_parameters():
        assert job.rank or torch.allclose(gradients[name], parameter.grad, rtol=1e-12, atol=1e-14), name


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("called", [False, True])
def test_classes_of_linear_cross_entropy_that_do_not_exist(P_world, called):
    """Where the workers of the features have no targets, the workers of the logits look at them."""
    P_x, P_y = grid(P_world, [1, 1]), P_world.create_partition_inclusive([job.size - 1])
    P_y = P_y.create_cartesian_topology_partition([1, 1])
    layer = dnn.DistributedLinearCrossEntropyLoss(P_x, 3, 5, P_y=P_y, P_W=P_y)
    x = torch.ones(2, 3) if P_x.active else distdl.zero_volume_tensor(dtype=torch.float32)
    right, wrong = (
        torch.tensor(pair) if P_y.active else distdl.zero_volume_tensor(dtype=torch.int64) for pair in ([0, 4], [0, 5])
    )
    for _ in range(2 * called):
        layer(x, right)
    raises_everywhere(ValueError, "worker 0 of P_y has classes from 0 to 5; the logits are", lambda: layer(x, wrong))
    assert layer(x, right).isfinite()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"])
def test_no_classes(P_world, kind):
    """Refused where they are split, and elsewhere as by torch.nn; a rank without a part does not wait for the loss."""
    workers = P_world.create_partition_inclusive(range(job.size - 1))
    make = getattr(dnn, f"Distributed{kind}")
    for shape in ([job.size - 1, 1], [1, job.size - 1]):
        P_x = workers.create_cartesian_topology_partition(shape)
        part = distdl.zero_volume_tensor
        x, target = (torch.empty(2, 0), torch.full((2,), -100)) if P_x.active else (part(), part(dtype=torch.int64))
        if kind == "MultiMarginLoss" or shape[1] > 1:
            raises_everywhere(
                ValueError, "no classes|are of 0 classes", lambda P_x=P_x, x=x, target=target: make(P_x)(x, target)
            )
        else:
            assert make(P_x)(x, target).isnan()
            probabilities = x if P_x.active else part()
            assert kind == "NLLLoss" or make(P_x)(x, probabilities).isnan()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("probabilities", [False, True])
def test_ranks_without_gradients_take_part_in_those_of_the_others(P_world, reduction, smoothing, probabilities):
    """Only the logits of the first worker require gradients."""
    P_x = grid(P_world, [1, job.size])
    x = torch.linspace(-1, 2, 6 * job.size, dtype=torch.float64).square().view(2, -1)
    target = x.softmax(1) if probabilities else torch.tensor([0, 3 * job.size - 1])
    block = block_of(x, P_x).requires_grad_(P_x.rank == 0)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    loss = DistributedCrossEntropyLoss(P_x, **options)(block, block_of(target, P_x) if probabilities else target)
    if loss.requires_grad:
        loss.sum().backward(create_graph=True)
    whole = x.clone().requires_grad_()
    torch.nn.CrossEntropyLoss(**options)(whole, target).sum().backward()
    if P_x.rank == 0:
        torch.testing.assert_close(block.grad.detach(), block_of(whole.grad, P_x))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("probabilities", [False, True])
def test_forward_derivatives_of_the_cross_entropy(P_world, smoothing, probabilities):
    P_x = grid(P_world, [1, job.size])
    x = torch.linspace(-1, 2, 6 * job.size, dtype=torch.float64).square().view(2, -1)
    target = x.softmax(1) if probabilities else torch.tensor([0, 3 * job.size - 1])
    twin = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)
    _, expected = torch.func.jvp(lambda logits: twin(logits, target), (x,), (x.sin(),))
    layer = DistributedCrossEntropyLoss(P_x, label_smoothing=smoothing)
    with forward_ad.dual_level():
        block = forward_ad.make_dual(block_of(x, P_x), block_of(x.sin(), P_x))
        loss = layer(block, block_of(target, P_x) if probabilities else target)
        if P_x.rank == 0:
            torch.testing.assert_close(forward_ad.unpack_dual(loss).tangent, expected)


def test_a_bad_class_without_the_structure_check(P_world):
    """Raises on its rank, which does not wait for the others."""
    layer = DistributedCrossEntropyLoss(grid(P_world, [job.size, 1]), reduction="none")
    x, target = torch.randn(3, 4), torch.tensor([0, 1, 2])
    expected = layer(x, target)
    with distdl.structure_check(False):
        layer(x, target)  # the first call without the check is still agreed on
        if job.rank == job.size - 1:
            with pytest.raises(ValueError, match="has classes from 1 to 99"):
                layer(x, torch.tensor([99, 1, 2]))
        else:
            layer(x, target)
    assert torch.equal(layer(x, target), expected)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtypes", [(torch.half, torch.float), (torch.float, torch.double), (torch.float, torch.half)])
def test_the_dtype_of_weighted_probabilities(P_world, dtypes, reduction, place):
    """Is the promoted dtype."""
    P_x = grid(P_world, [job.size if d == place else 1 for d in range(2)])
    x = torch.linspace(-1.0, 2.0, 4 * job.size**2).view(2 * job.size, -1).to(dtypes[0])
    target, weight = x.softmax(1), torch.linspace(0.5, 1.5, 2 * job.size).to(dtypes[1])
    twin = torch.nn.CrossEntropyLoss(weight, reduction=reduction)
    loss = DistributedCrossEntropyLoss(P_x, weight, reduction=reduction)(block_of(x, P_x), block_of(target, P_x))
    expected = twin(x, target)
    assert loss.dtype == expected.dtype
    if reduction != "none":
        torch.testing.assert_close(loss, expected, rtol=2e-3, atol=2e-3)
