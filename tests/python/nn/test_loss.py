"""The distributed losses against torch.nn's: values, derivatives, options, mistakes."""

import contextlib

import pytest
import torch

import distdl
import distdl.nn as dnn
from distdl.nn import DistributedMSELoss
from support.blocks import block_of, block_slices, grid
from support.ranks import job, raises_everywhere
from support.tensors import values

REDUCTIONS = ["mean", "sum", "none"]


@pytest.mark.parametrize("asks", [False, True])
def test_gradients_on_ranks_outside(P_world, asks):
    """They are asked for where they are by the workers, and nowhere else."""
    P_x = grid(P_world, [1], [job.size - 1])
    x = torch.ones(3, requires_grad=asks) if P_x.active else distdl.zero_volume_tensor()
    loss = DistributedMSELoss(P_x)(x, torch.zeros(3) if P_x.active else distdl.zero_volume_tensor())
    assert loss.requires_grad == asks


def test_without_gradients(P_world):
    P_x = grid(P_world, [1])
    with torch.no_grad():
        loss = DistributedMSELoss(P_x)(*[block_of(torch.ones(3), P_x)] * 2)
    assert loss == 0
    assert not loss.requires_grad


def test_arguments_by_name(P_world):
    P_x = grid(P_world, [job.size])
    x = block_of(torch.arange(4.0), P_x)
    for _ in range(2):
        assert DistributedMSELoss(P_x)(target=torch.zeros_like(x), input=x) == 14 / 4


def test_a_loss_for_each_row_of_a_grid(P_world):
    """Replicas: each sub-grid has a loss of its own, of which others know nothing."""
    rows = 2 if job.size % 2 == 0 else 1
    P = grid(P_world, [rows, job.size // rows])
    P_row = P.create_cartesian_subtopology_partition([False, True])
    row, x = job.rank // P_row.size, torch.ones(2, requires_grad=True)
    if row == 0:  # the other row does without
        loss = DistributedMSELoss(P_row)(x, torch.full((2,), 3.0))
        loss.backward()
        assert loss.item() == 4.0
        assert torch.equal(x.grad, torch.full((2,), -4.0 / (2 * P_row.size)))


def test_ctc_of_sequences_and_of_targets_put_together(P_world):
    """Lengths may be lists; each worker has the targets of its part of the batch."""
    n = job.size + 1
    P_x = grid(P_world, [1, job.size, 1])
    log_probs = torch.randn(6, n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).log_softmax(2)
    targets, lengths = torch.tensor([[1, 2, 3]] * n), [1 + i % 3 for i in range(n)]
    start, stop = block_slices(P_x, log_probs.shape)[1].start, block_slices(P_x, log_probs.shape)[1].stop
    own = torch.cat([targets[i, : lengths[i]] for i in range(start, stop)])
    for reduction in REDUCTIONS:
        layer = dnn.DistributedCTCLoss(P_x, reduction=reduction)
        loss = layer(block_of(log_probs, P_x), own, [6] * (stop - start), tuple(lengths[start:stop]))
        expected = torch.nn.CTCLoss(reduction=reduction)(log_probs, targets, [6] * n, lengths)
        torch.testing.assert_close(loss, expected[start:stop] if reduction == "none" else expected)


def test_ctc_of_one_sequence(P_world):
    """Without a batch, on one worker."""
    P_x = grid(P_world, [1, 1])
    log_probs = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).log_softmax(1)
    arguments = (log_probs, torch.tensor([1, 2]), torch.tensor(5), torch.tensor(2))
    local_arguments = arguments if P_x.active else [distdl.zero_volume_tensor(dtype=x.dtype) for x in arguments]
    torch.testing.assert_close(dnn.DistributedCTCLoss(P_x)(*local_arguments), torch.nn.CTCLoss()(*arguments))


WRONG_VALUES = {
    "a probability of 2": (torch.nn.BCELoss(), "between 0 and 1", (torch.full((2,), 2.0), torch.ones(2))),
    "a nan": (torch.nn.BCELoss(), "between 0 and 1", (torch.full((2,), torch.nan), torch.ones(2))),
    "a negative variance": (
        torch.nn.GaussianNLLLoss(), "negative variance", (torch.ones(2), torch.ones(2), -torch.ones(2)),
    ),
    "no label": (torch.nn.MultiLabelMarginLoss(), "there are 2 labels", (torch.ones(1, 2), torch.tensor([[2, -1]]))),
    "no class": (torch.nn.MultiMarginLoss(), "of 2 classes", (torch.ones(1, 2), torch.tensor([2]))),
    "no step": (
        torch.nn.CTCLoss(), "there are 2 steps",
        (torch.zeros(2, 1, 3), torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1])),
    ),
    "no target": (
        torch.nn.CTCLoss(), "target lengths",
        (torch.zeros(2, 1, 3), torch.tensor([[1]]), torch.tensor([2]), torch.tensor([2])),
    ),
    "no class of a target": (
        torch.nn.CTCLoss(), "there are 3 classes",
        (torch.zeros(2, 1, 3), torch.tensor([[3]]), torch.tensor([2]), torch.tensor([1])),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("twin", "match", "wrong"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_wrong_values_on_one_rank_raise_on_all(P_world, twin, match, wrong):
    """Beside a rank that has no part, too."""
    active = list(range(max(job.size - 1, 1)))
    dims = wrong[0].dim()
    shape = [len(active) if d == (1 if dims == 3 else 0) else 1 for d in range(dims)]
    P_x = grid(P_world, shape, active)
    layer = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x)
    good = tuple(torch.ones_like(x) if x.is_floating_point() else torch.ones_like(x) * (x.dim() == 1) for x in wrong)
    if isinstance(twin, torch.nn.CTCLoss):
        good = (wrong[0], torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1]))
    none = tuple(distdl.zero_volume_tensor(dtype=x.dtype) for x in wrong)
    tensors = good if P_x.active else none
    layer(*tensors)
    raises_everywhere(ValueError, match, lambda: layer(*(wrong if job.rank == active[-1] else tensors)))
    layer(*tensors)


def test_a_target_that_has_no_gradient(P_world):
    P_x = grid(P_world, [1])
    x = block_of(torch.ones(2), P_x)
    layer = dnn.DistributedSoftMarginLoss(P_x)
    raises_everywhere(ValueError, "requires a gradient", lambda: layer(x, torch.ones_like(x).requires_grad_()))


SPLIT = {
    "MultiLabelMarginLoss": ("the labels, along dimension 1, must not be split", dnn.DistributedMultiLabelMarginLoss),
    "TripletMarginWithDistanceLoss": ("must not be split", dnn.DistributedTripletMarginWithDistanceLoss),
    "CTCLoss": ("steps and classes cannot be split", dnn.DistributedCTCLoss),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("match", "kind"), SPLIT.values(), ids=SPLIT)
def test_what_cannot_be_split(P_world, match, kind):
    raises_everywhere(ValueError, match, lambda: kind(grid(P_world, [1, job.size])))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("part", [(slice(1),), (slice(None), slice(1)), (0,)], ids=["batch", "channels", "dimension"])
@pytest.mark.parametrize("name", ["BCEWithLogits", "Huber", "KLDiv", "L1", "MSE", "PoissonNLL", "SoftMargin"])
def test_blocks_of_no_whole_tensor(P_world, name, part):
    layer = getattr(dnn, f"Distributed{name}Loss")(grid(P_world, [1, 1, job.size]))
    x = torch.ones(2, 2, 3)
    block = x[part] if job.rank == 0 else x
    raises_everywhere(ValueError, "dimension|blocks", lambda: layer(block, block))


def test_weights_that_do_not_fit(P_world):
    P_x = grid(P_world, [job.size, 1])
    x = torch.zeros(2, 3)
    for shape in ([2], [3, 3, 3]):
        layer = dnn.DistributedBCEWithLogitsLoss(P_x, pos_weight=torch.ones(shape))
        raises_everywhere((ValueError, RuntimeError), "pos_weight|shape|size", lambda layer=layer: layer(x, x))


def test_a_variance_for_all(P_world):
    """A number, as torch.nn takes it."""
    P_x = grid(P_world, [job.size, 1])
    x, y = torch.randn(2, 2 * job.size, 3, generator=torch.Generator().manual_seed(0))
    loss = dnn.DistributedGaussianNLLLoss(P_x)(block_of(x, P_x), block_of(y, P_x), 0.5)
    torch.testing.assert_close(loss, torch.nn.GaussianNLLLoss()(x, y, 0.5))


@pytest.mark.parametrize("layout", ["owner", "sharded", "replicated"])
def test_probabilities_and_predictions_of_clusters(P_world, layout):
    """As torch.nn's; with the same seed the parameters are, too."""
    P_x, options = grid(P_world, [job.size, 1]), {"div_value": 2.0, "head_bias": True, "dtype": torch.float64}
    with distdl.parameter_layout(layout):
        torch.manual_seed(1)
        layer = dnn.DistributedAdaptiveLogSoftmaxWithLoss(P_x, 6, 9, [2, 5], **options)
    torch.manual_seed(1)
    twin = torch.nn.AdaptiveLogSoftmaxWithLoss(6, 9, [2, 5], **options)
    x = torch.randn(7, 6, dtype=torch.float64)
    own = block_slices(P_x, x.shape)[0]
    torch.testing.assert_close(layer.log_prob(block_of(x, P_x)), twin.log_prob(x)[own])
    assert torch.equal(layer.predict(block_of(x, P_x)), twin.predict(x)[own])
    target = torch.arange(7)
    output, loss = layer(block_of(x, P_x), target[own])
    torch.testing.assert_close(loss, twin(x, target).loss)
    torch.testing.assert_close(output, twin(x, target).output[own])
    wrong = target[own] + 9 if job.rank == 0 else target[own]
    raises_everywhere(ValueError, "there are 9 classes", lambda: layer(block_of(x, P_x), wrong))
    layer.float()
    with torch.autocast("cpu", torch.bfloat16):  # torch.nn raises, but for targets before the first cutoff
        output, loss = layer(block_of(x.float(), P_x), target[own])
    assert output.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(loss, twin(x, target).loss.float(), rtol=2e-2, atol=0)


@pytest.mark.parametrize("p", [torch.inf, -torch.inf])
@pytest.mark.parametrize("value", [0.1, 3.0, torch.inf])
def test_ties_share_the_derivative_of_a_maximum(P_world, p, value):
    """As in torch, however the elements that are equal are spread over workers."""
    P_x, n = grid(P_world, [1, job.size]), 2 * job.size + 1
    x = torch.full((2, n), value, dtype=torch.float64) * torch.tensor([1.0, -1.0]).repeat(n)[:n]
    x[0, 0] *= 2 if p < 0 else 0.5
    twin = torch.nn.PairwiseDistance(p, eps=0.0)
    whole = x.clone().requires_grad_()
    expected = twin(whole, torch.zeros_like(whole))
    expected.sum().backward()
    block = block_of(x, P_x).requires_grad_()
    y = dnn.DistributedPairwiseDistance(P_x, p, eps=0.0)(block, torch.zeros_like(block))
    y.sum().backward()
    assert P_x.rank or torch.equal(y, expected)
    torch.testing.assert_close(block.grad, block_of(whole.grad, P_x))


@pytest.mark.parametrize("swap", [False, True])
def test_ties_in_the_distances_of_triplets(P_world, swap):
    P_x, n = grid(P_world, [1, job.size]), 2 * job.size + 1
    options = {"p": torch.inf, "eps": 0.0, "swap": swap, "margin": 9.0}
    wholes = [torch.full((2, n), value, dtype=torch.float64, requires_grad=True) for value in (1.0, 5.0, 2.0)]
    blocks = [block_of(tensor.detach(), P_x).requires_grad_() for tensor in wholes]
    torch.nn.TripletMarginLoss(**options)(*wholes).backward()
    dnn.DistributedTripletMarginLoss(P_x, **options)(*blocks).backward()
    for block, whole in zip(blocks, wholes, strict=True):
        torch.testing.assert_close(block.grad, block_of(whole.grad, P_x))


@pytest.mark.parametrize("size", [1e-25, 1e-6, 1.0, 1e15, 1e20, 1e30])
def test_cosines_of_vectors_of_any_magnitude(P_world, size):
    """Where the norm leaves the range, torch's cosine is 0."""
    P_x = grid(P_world, [1, job.size])
    x = torch.linspace(-1.0, 2.0, 6 * job.size).view(2, -1) * size
    other = x.flip(0) + size
    whole, block = x.clone().requires_grad_(), block_of(x, P_x).requires_grad_()
    expected = torch.nn.CosineSimilarity(1)(whole, other)
    expected.sum().backward()
    y = dnn.DistributedCosineSimilarity(P_x, 1)(block, block_of(other, P_x))
    y.sum().backward()
    if P_x.rank == 0:
        torch.testing.assert_close(y, expected)
    if size < 1e15:
        largest = whole.grad.abs().max()
        torch.testing.assert_close(block.grad / largest, block_of(whole.grad, P_x) / largest, rtol=1e-5, atol=1e-6)


def test_a_number_for_the_variance_by_name(P_world):
    P_x = grid(P_world, [job.size])
    x = torch.linspace(-1.0, 2.0, 3 * job.size)
    block = block_of(x, P_x)
    loss = dnn.DistributedGaussianNLLLoss(P_x)(target=block.cos(), var=2.0, input=block)
    torch.testing.assert_close(loss, torch.nn.GaussianNLLLoss()(x, x.cos(), 2.0))


@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
def test_no_labels(P_world, shape):
    """torch.nn refuses them; ranks without a part wait for the loss."""
    loss = dnn.DistributedMultiLabelMarginLoss(grid(P_world, [1] * len(shape)))
    none = torch.zeros(shape) if job.rank == 0 else distdl.zero_volume_tensor()
    raises_everywhere((ValueError, RuntimeError), "there must be labels", lambda: loss(none, none.long()))


def test_set_up_on_another_default_device(P_world):
    """On one rank: what set-up makes does not follow it, so that the rank does not raise alone while others wait."""
    P_x = grid(P_world, [1, job.size])
    layer = dnn.DistributedBCEWithLogitsLoss(P_x, pos_weight=torch.arange(1.0, 5.0))
    x, target = (block_of(values((3, 4), torch.float32), P_x) for _ in range(2))
    with torch.device("meta") if job.rank == job.size - 1 else contextlib.nullcontext():
        loss = layer(x, target)
    assert loss.device.type == "cpu"


@pytest.mark.parametrize("p", [1, 2])
def test_scores_that_are_no_numbers(P_world, p):
    """torch counts no margin of a score that is nan, nor any of a row whose target is; neither has a gradient."""
    P_x = grid(P_world, [1, job.size])
    x = values((3, 2 * job.size))
    x[0, 0] = x[1, 1] = torch.nan
    target = torch.tensor([1, 1, 0])
    whole, block = x.clone().requires_grad_(), block_of(x, P_x).requires_grad_()
    expected, loss = torch.nn.MultiMarginLoss(p)(whole, target), dnn.DistributedMultiMarginLoss(P_x, p)(block, target)
    expected.backward()
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(block.grad, block_of(whole.grad, P_x))


SECTIONS = {
    "Huber": ("input", "reduction, delta: as in ``torch.nn.HuberLoss``."),
    "NLL": ("input", "weight, ignore_index, reduction: as in ``torch.nn.NLLLoss``. Weights are whole"),
    "TripletMargin": ("anchor", "margin, p, eps, swap, reduction: as in ``torch.nn.TripletMarginLoss``."),
}


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", SECTIONS)
def test_sections_of_docstrings(name):
    """Each loss is documented with its options, and with what holds for all losses."""
    text, (first, options) = getattr(dnn, f"Distributed{name}Loss").__doc__, SECTIONS[name]
    assert f"\n    Args:\n        P_x: the partition of the {first}.\n        {options}" in text
    assert ("Weights are whole" in text) == (name == "NLL")
    assert 0 < text.find("\n    Shape:\n") < text.find("The result is a scalar") < text.find("\n    Raises:\n")
