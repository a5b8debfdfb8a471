"""Functions over partitions, and inputs with partitions of their own."""

import functools

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.distributed import assert_none, noise, off, partitions
from support.ranks import job, raises_everywhere

P_world = distdl.Partition(job)


def dice_loss(scores, labels, *, smoothing=1.0):
    shares, targets = scores.softmax(1), F.one_hot(labels, scores.shape[1]).movedim(-1, 1).to(scores)
    dims = (0, *range(2, scores.dim()))
    common, all_of_both = (shares * targets).sum(dims), (shares + targets).sum(dims)
    return 1 - ((2 * common + smoothing) / (all_of_both + smoothing)).mean()


LOSSES = {
    "dice": dice_loss,
    "cross entropy": F.cross_entropy,
    "module": torch.nn.CrossEntropyLoss(label_smoothing=0.1),
    "partial": functools.partial(dice_loss, smoothing=0.5),
    "lambda": lambda scores, labels: (scores.argmax(1) == labels).double().mean(),
}


def _without_channels(split):
    return [split[0], *split[2:]]


@pytest.mark.parametrize("place", ["partition", "numbers", "position", "whole"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_labels_in_blocks(name, place):
    loss_of, scores, labels = LOSSES[name], noise((2, 3, 7, 5)), torch.arange(70).reshape(2, 7, 5) % 3
    argument = "target" if name == "cross entropy" else "labels"
    for split in partitions(4):
        P_x, P_l = grid(P_world, split), grid(P_world, _without_channels(split))
        requested = {argument: P_l, "numbers": None}[argument] if place == "partition" else _without_channels(split)
        key = 1 if place == "position" or name == "module" else argument
        ours = distdl.distribute(loss_of, P_x, input_partitions={key: None if place == "whole" else requested})
        x = distdl.scatter(scores, P_x).detach().requires_grad_()
        own_labels = labels if place == "whole" else distdl.scatter(labels, P_l)
        loss, whole = ours(x, own_labels), scores.clone().requires_grad_()
        expected = loss_of(whole, labels)
        problems = ["" if torch.allclose(loss, expected, 1e-12) else f"{loss}, not {expected}"]
        if expected.requires_grad:
            loss.backward()
            expected.backward()
            gradient = distdl.gather(x.grad, P_x)
            problems.append(off(gradient, whole.grad))
        assert_none(problems)


class Batch(torch.nn.Module):
    """Takes its tensors in a dict, with a surface beside levels, and a tensor with a dimension more."""

    def forward(self, batch, pairs, *rest):
        levels = batch["levels"] + batch["surface"][:, None]
        return levels * batch["weights"] + pairs.sum(-1) + rest[0]


def test_partitions_in_structures():
    levels, surface, pairs, last = noise((2, 3, 6)), noise((2, 6), 1), noise((2, 3, 6, 2), 2), noise((2, 3, 6), 3)
    weights = torch.linspace(1, 2, 6, dtype=torch.float64)
    P_x, P_s = grid(P_world, [1, 1, job.size]), grid(P_world, [1, job.size])
    P_p = grid(P_world, [1, 1, job.size, 1])
    places = {"batch": {"surface": P_s, "weights": None}, "pairs": P_p}
    ours = distdl.distribute(Batch(), P_x, input_partitions=places)
    own = distdl.scatter(
        ({"levels": levels, "surface": surface, "weights": weights}, pairs, last),
        ({"levels": P_x, "surface": P_s, "weights": None}, P_p, P_x),
    )
    y = distdl.gather(ours(*own), ours.output_partition)
    expected = levels + surface[:, None]
    assert_none([off(y, expected * weights + pairs.sum(-1) + last)])


@pytest.mark.mpi(min_size=2)
def test_labels_that_may_be_blocks_are_refused():
    P_x = grid(P_world, [1, 1, job.size, 1])
    scores, labels = torch.rand(2, 3, 2, 5), torch.zeros(2, 2, 5, dtype=torch.int64)
    call = lambda: distdl.distribute(dice_loss, P_x)(scores, labels)  # noqa: E731
    raises_everywhere(ValueError, rf"input_partitions=\{{'labels': \[1, {job.size}, 1\]\}}", call)
    uneven = torch.zeros(2, 2 + (job.rank == 1), 4, dtype=torch.int64)
    raises_everywhere(ValueError, r"name their partition", lambda: distdl.distribute(dice_loss, P_x)(scores, uneven))


@pytest.mark.mpi(min_size=2)
def test_refused_partitions_of_inputs():
    P_x = grid(P_world, [1, 1, job.size, 1])
    make = lambda places: lambda: distdl.distribute(dice_loss, P_x, input_partitions=places)  # noqa: E731
    raises_everywhere(ValueError, "the key 'label'; the model's inputs are .'scores', 'labels'", make({"label": None}))
    raises_everywhere(ValueError, "the key 7", make({7: None}))
    raises_everywhere(TypeError, "it has to be a dict", make([P_x]))
    raises_everywhere(TypeError, r"input_partitions\['labels'\] is a str", make({"labels": "rows"}))
    raises_everywhere(ValueError, f"P_x has {job.size} workers", make({"labels": [job.size + 1, 1, 1]}))
    raises_everywhere(ValueError, "different", make({"labels": [1, job.size, 1] if job.rank else [1, 1, 1]}))
    ours = distdl.distribute(dice_loss, P_x, input_partitions={"labels": [1, job.size]})
    scores, labels = torch.rand(2, 3, 2, 5), torch.zeros(2, 2, 5, dtype=torch.int64)
    raises_everywhere(ValueError, "as many dimensions", lambda: ours(scores, labels))
    alone = distdl.distribute(dice_loss, P_x, input_partitions={"labels": [1, 1, 1]})
    raises_everywhere(ValueError, "is not in input_partitions.* but passes", lambda: alone(scores, labels))
    raises_everywhere(TypeError, "method of the module", lambda: distdl.distribute(Batch().forward, P_x))
    raises_everywhere(TypeError, "has to be a torch.nn.Module", lambda: distdl.distribute(3, P_x))


def test_metrics_and_augmentations():
    """An augmentation that draws random numbers gives the same on every partition."""

    def augment(x):
        return x.flip(-1) * (1 + 0.1 * torch.rand(x.shape[0], 1, 1, 1, dtype=x.dtype)) + torch.randn_like(x)

    whole, results = noise((2, 3, 6, 4)), []
    for split in partitions(4):
        P_x = grid(P_world, split)
        torch.manual_seed(3)
        ours = distdl.distribute(augment, P_x)
        results.append(distdl.gather(ours(distdl.scatter(whole, P_x)), ours.output_partition))
    assert_none([off(y, results[0], 1e-13) for y in results])


def test_a_loss_over_the_results_of_a_model():
    """Scores of a few workers, and labels that every rank has."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).double()
    images, labels = noise((5, 2, 6, 7)), torch.arange(5) % 4
    expected = F.cross_entropy(model(images), labels)
    expected.backward()
    for split in partitions(4):
        P_x = grid(P_world, split)
        ours = distdl.distribute(model, P_x)
        scores = ours(distdl.scatter(images, P_x))
        loss_of = distdl.distribute(F.cross_entropy, ours.output_partition, input_partitions={"target": None})
        loss = loss_of(scores, labels)
        loss.backward()
        weight = distdl.sequential_gradients(ours).get("0.weight")
        problem = "" if abs(loss.item() - expected.item()) < 1e-12 else f"{loss}, not {expected}"
        assert_none([problem, off(weight, model[0].weight.grad) if job.rank == 0 else ""])


AUGMENTATIONS = {
    "flips": lambda x, labels: (x.flip(2, 3), labels.flip(-1, -2)),
    "turns": lambda x, labels: (x.rot90(1, (2, 3)).cumsum(2), labels.mT),
    "crops": lambda x, labels: (x[:, :, 1:4], labels[:, 1:4]),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_results_are_split_as_the_inputs(name):
    """So that they can be passed on as what they were."""
    change, x, labels = AUGMENTATIONS[name], noise((3, 2, 5, 4)), torch.arange(60).reshape(3, 5, 4)
    for split in partitions(4):
        P_x, P_l = grid(P_world, split), grid(P_world, _without_channels(split)) if split[1] == 1 else None
        ours = distdl.distribute(change, P_x, input_partitions={"labels": P_l})
        results = ours(distdl.scatter(x, P_x), labels if P_l is None else distdl.scatter(labels, P_l))
        for y, expected in zip(results, change(x, labels), strict=True):
            if expected.dim() == 4 or P_l is not None:
                P_y = P_x if expected.dim() == 4 else P_l
                assert_none([off(distdl.gather(y, P_y), expected, 1e-14)])


def test_functions_of_torch_that_do_not_tell_their_arguments():
    P_x = grid(P_world, [P_world.size, 1])
    whole = noise((4, 2))
    y = distdl.distribute(torch.flip, P_x)(distdl.scatter(whole, P_x), (0,))
    assert_none([off(distdl.gather(y, P_x), whole.flip(0), 0)])


def test_attention_with_a_mask_of_keys_alone():
    """A mask of one dimension, which torch takes where something asks for gradients."""

    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=x[0, 0, :, 0])

    P_x = grid(P_world, [1, 1, P_world.size, 1])
    whole = noise((2, 2, 5, 3))
    y = distdl.distribute(attend, P_x)(distdl.scatter(whole, P_x).requires_grad_())
    assert_none([off(distdl.gather(y.detach(), P_x), attend(whole.requires_grad_()).detach(), 1e-14)])
