"""The optimizers and habits of torch.optim beside the sequential run."""

import copy
import inspect

import pytest
import torch
from torch.optim import swa_utils

import distdl
import distdl.nn as dnn
from support.blocks import block_of, grid
from support.ranks import job, raises_everywhere
from support.training import KINDS, OPTIMIZERS, Twins

kinds = pytest.mark.parametrize("kind", KINDS)

WHOLE = {"Adafactor", "LBFGS", "Muon"}
SPARSE = {"SparseAdam"}


def test_no_optimizer_of_torch_is_forgotten():
    kinds = {name for name, kind in vars(torch.optim).items() if inspect.isclass(kind) and name != "Optimizer"}
    assert kinds == {*OPTIMIZERS, *WHOLE, *SPARSE}


def trained(model, loss, name, steps=20):
    """The optimizer, after training."""
    optimizer = getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[name])
    for step in range(steps):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
    return optimizer


@pytest.mark.shared
@pytest.mark.parametrize(("kind", "name"), [(KINDS[i % 3], name) for i, name in enumerate(OPTIMIZERS)])
def test_twenty_steps_are_those_of_the_sequential_run(P_world, kind, name):
    twins = Twins(P_world, kind)
    twins.both(lambda model, loss: trained(model, loss, name))
    # Adam and its kin divide by roots of means of squares, some of which are small.
    twins.assert_equal(rtol=1e-7, atol=1e-9)


@pytest.mark.ranks(2)
def test_sparse_adam(P_world):
    """Where one rank has the whole table, gradients of its rows."""
    P_x = grid(P_world, [1])
    twin = torch.nn.Embedding(5, 3, sparse=True)
    table = dnn.DistributedEmbedding.from_sequential(twin, P_x)
    indices = torch.tensor([0, 3, 3, 4])
    for module, rows in ((twin, indices), (table, block_of(indices, P_x))):
        optimizer = torch.optim.SparseAdam(module.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            module(rows).square().sum().backward()
            optimizer.step()
    state = distdl.sequential_state_dict(table)
    assert job.rank > 0 or torch.equal(state["weight"], twin.weight)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", sorted(WHOLE))
def test_what_needs_whole_parameters_is_refused_on_all_ranks(P_world, name):
    twins = Twins(P_world, "sharded")
    weights = [parameter for parameter in twins.model.parameters() if parameter.dim() == 2]
    optimizer = getattr(torch.optim, name)(weights)
    before = [weight.clone() for weight in weights]

    def closure():
        loss = twins.own_loss(0)
        loss.backward()
        return loss

    step = (lambda: optimizer.step(closure)) if name == "LBFGS" else optimizer.step
    raises_everywhere(ValueError, rf"torch.optim.{name} .* lives in the layout 'sharded'", step)
    assert all(map(torch.equal, before, weights))


@pytest.mark.parametrize(("name", "kind"), [("Adafactor", "owner"), ("Muon", "owner"), ("LBFGS", "replicated")])
def test_whole_parameters_are_taken(P_world, name, kind):
    """On blocks of rows, each parameter is whole where it lives."""
    P_x = grid(P_world, [job.size, 1])
    torch.manual_seed(0)
    twin = torch.nn.Linear(6, 5, bias=False, dtype=torch.float64)
    with distdl.parameter_layout(kind):
        layer = dnn.DistributedLinear.from_sequential(twin, P_x)
    x = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = dnn.DistributedMSELoss(P_x)
    target = torch.ones(7, 5, dtype=torch.float64)

    def run(module, loss):
        # Later iterations of LBFGS divide differences by differences of the size of roundings.
        options = {"max_iter": 5} if name == "LBFGS" else {}
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1, **options)

        def closure():
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(1 if name == "LBFGS" else 20):
            if name == "LBFGS":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()

    run(twin, lambda: torch.nn.functional.mse_loss(twin(x), target))
    run(layer, lambda: loss(layer(block_of(x, P_x)), block_of(target, P_x)))
    state = distdl.sequential_state_dict(layer)
    # Muon computes in bfloat16 on the way.
    assert job.rank > 0 or torch.allclose(state["weight"], twin.weight, rtol=1e-2 if name == "Muon" else 1e-8)


@pytest.mark.ranks(1, 3)
@kinds
def test_groups_accumulation_schedulers_and_freezing(P_world, kind):
    """Two groups of parameters, two batches a step, a layer that is frozen half of the time."""

    def run(model, loss):
        groups = [{"params": model[1].parameters()}, {"params": model[3].parameters(), "lr": 0.3, "momentum": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, decay], [3])
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.7)
        for step in range(8):
            model[1].requires_grad_(step % 4 < 2)
            optimizer.zero_grad()
            for half in range(2):
                value = loss(2 * step + half) / 2
                value.backward()
            distdl.clip_grad_norm_(model, 0.5)
            optimizer.step()
            scheduler.step()
            plateau.step(value.item())
        return [group["lr"] for group in optimizer.param_groups]

    twins = Twins(P_world, kind)
    expected, rates = twins.both(run)
    assert rates == pytest.approx(expected, rel=1e-12)
    twins.assert_equal()


@pytest.mark.ranks(1, 4)
@kinds
def test_averages_of_weights(P_world, kind):
    """EMA and SWA, with the running statistics of the averaged weights."""

    def run(model, loss):
        ema = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
        swa = swa_utils.AveragedModel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = swa_utils.SWALR(optimizer, 0.05, anneal_epochs=3)
        for step in range(6):
            optimizer.zero_grad()
            loss(step).backward()
            optimizer.step()
            scheduler.step()
            for average in (ema, swa):
                average.update_parameters(model)
        return ema, swa

    twins = Twins(P_world, kind)
    (twin_ema, twin_swa), (ema, swa) = twins.both(run)
    twins.assert_equal(ema, twin_ema)
    wholes = [next(twins.batch(number)) for number in range(3)]
    swa.eval()
    swa_utils.update_bn(wholes, twin_swa)
    distdl.update_bn([(block_of(x, twins.P_x), "label") for x in wholes], swa)
    assert not swa.training
    assert swa.module[0].momentum == 0.1
    twins.assert_equal(swa, twin_swa)


@pytest.mark.ranks(2)
def test_a_copied_model_trains_by_itself(P_world):
    """The parameters of a copy are blocks as well: their norm is that of the whole."""
    twins = Twins(P_world, "sharded")
    copied = copy.deepcopy(twins.model)
    twins.own_loss(0, copied).backward()
    twins.twin_loss(0).backward()
    norm = distdl.clip_grad_norm_(list(copied.parameters()), 1e9)
    assert torch.allclose(norm, torch.nn.utils.clip_grad_norm_(twins.twin.parameters(), 1e9), rtol=1e-12)
