"""The agreement of a layer's ranks: one vote a call, which the operators within go by."""

import copy
import threading
from contextlib import contextmanager

import pytest
import torch

import distdl
from distdl import _core, operators
from support.blocks import grid
from support.ranks import job, one_if_parallel, raises_everywhere, votes_of


def agreement_on(P, *tensors):
    return _core.LayerAgreement("Layer", P.grid.root, list(P.ranks), list(tensors or ["input"]), ["mask"])


@contextmanager
def call(agreement, *inputs, parameters=(), own=""):
    changed = agreement.agree(inputs, parameters, own)
    try:
        yield changed
    finally:
        agreement.leave()


def changed_by(agreement, *inputs, parameters=(), own=""):
    with call(agreement, *inputs, parameters=parameters, own=own) as changed:
        return changed


@pytest.fixture
def everyone(P_world):
    return grid(P_world, [job.size])


@pytest.fixture
def total_of(everyone):
    return operators.all_sum_reduce(everyone, [0])


def expected_total(x):
    return sum(job.allgather(x.detach()))


def test_one_vote_a_call_whatever_is_within(everyone, total_of):
    agreement, other = agreement_on(everyone), operators.all_gather(everyone, [0])
    x, y = torch.full((2,), float(job.rank)), torch.full((3,), 1.0)

    def layer():
        with call(agreement, x):
            assert torch.equal(total_of(x), expected_total(x))
            assert torch.equal(other.start(y).wait(), torch.ones(3 * job.size))

    layer()
    for _ in range(3):
        assert votes_of(layer) == one_if_parallel()


def test_tells_what_changed_on_any_rank(everyone):
    agreement, x = agreement_on(everyone, "input", "mask"), torch.ones(2)
    last = job.rank == job.size - 1
    assert changed_by(agreement, x)
    assert not changed_by(agreement, x)
    assert changed_by(agreement, torch.ones(3) if last else x)
    assert changed_by(agreement, x)
    assert changed_by(agreement, x.double() if last else x)
    assert changed_by(agreement, x)
    assert changed_by(agreement, x, x if last else None)
    assert agreement.structure(1, everyone.ranks) == [None] * (job.size - 1) + [([2], torch.float32)]
    assert changed_by(agreement, x)
    assert changed_by(agreement, x, own="option")
    assert changed_by(agreement, x, parameters=[x], own="option")
    assert not changed_by(agreement, x, parameters=[x], own="option")
    assert changed_by(agreement, x, parameters=[x.half()], own="option")
    with torch.autocast("cpu", torch.bfloat16):
        assert changed_by(agreement, x, parameters=[x.half()], own="option")
        assert agreement.autocast is torch.bfloat16
    assert changed_by(agreement, x, parameters=[x.half()], own="option")
    assert agreement.autocast is None
    agreement.forget()
    assert changed_by(agreement, x, parameters=[x.half()], own="option")


@pytest.mark.parametrize("what", ["input", "parameter"])
def test_derivatives_that_one_rank_asks_for_reach_all(everyone, total_of, what):
    agreement = agreement_on(everyone)
    for asks in (False, True, False, True):
        x, weight = torch.ones(2), torch.ones(2)
        (x if what == "input" else weight).requires_grad_(asks and job.rank == 0)
        changed = agreement.agree([x], [weight])
        try:
            y = total_of(x * weight)
        finally:
            agreement.leave()
        assert y.requires_grad == asks
        assert not changed or not asks
        if asks:
            y.sum().backward()
            asked = x if what == "input" else weight
            assert asked.grad is None if job.rank > 0 else torch.equal(asked.grad, torch.full((2,), float(job.size)))


def test_differences_raise_on_all_ranks(everyone):
    agreement, x = agreement_on(everyone, "input", "target"), torch.ones(2)
    last = job.rank == job.size - 1
    changed_by(agreement, x, x)
    bad = f"the target of rank {job.size - 1} is of type str; it has to be a torch.Tensor"
    raises_everywhere(TypeError, bad, lambda: changed_by(agreement, x, "text" if last else x))
    bad = ValueError("has classes from 0 to 9")
    raises_everywhere(ValueError, "target of rank 0 has classes", lambda: changed_by(agreement, x, bad))
    if job.size > 1:
        for options in ({"own": str(last)}, {"parameters": [x.double() if last else x]}):
            text = r"Layer: the ranks differ; rank 0.*: parameters of "
            raises_everywhere(ValueError, text, lambda o=options: changed_by(agreement, x, x, **o))
        parameters = [x.double() if last else x, x, x]
        text = (
            r"Layer: .*: parameters of \[3 of torch.float32\], .*: parameters of \[torch.float64, 2 of torch.float32\]"
        )
        raises_everywhere(ValueError, text, lambda: changed_by(agreement, x, x, parameters=parameters))
        wrong = x.clone().requires_grad_()

        def mixed():
            with torch.set_grad_enabled(not last):
                changed_by(agreement, wrong, x)

        raises_everywhere(RuntimeError, "disabled on others", mixed)
    assert changed_by(agreement, x, x)
    assert not changed_by(agreement, x, x)


@pytest.mark.mpi(min_size=2)
def test_gradients_that_are_disabled_within_a_call_on_some_ranks(everyone, total_of):
    agreement, x = agreement_on(everyone), torch.ones(2, requires_grad=True)

    def mixed():
        with call(agreement, x), torch.set_grad_enabled(job.rank == 0):
            total_of(x)

    raises_everywhere(RuntimeError, "AllSumReduce: gradients are asked for on some ranks and disabled on others", mixed)


def test_shapes_of_parameters(everyone):
    agreement, x = agreement_on(everyone), torch.ones(2)
    agreement.expect("weight", [2], False)
    agreement.expect("bias", [3], True)
    last = job.rank == job.size - 1
    changed_by(agreement, x, parameters=[x, torch.ones(0)])
    rank = job.size - 1
    for parameters, text in (
        ([torch.ones(4), torch.ones(3)], rf"rank {rank} meets a weight of shape \[4\]; it must be \[2\]"),
        ([x, torch.ones(4)], rf"rank {rank} meets a bias of shape \[4\]; it must be \[3\]"),
        ([x], f"rank {rank} meets no bias"),
        ([None, x], f"rank {rank} meets no weight"),
    ):
        tensors = parameters if last else [x, torch.ones(3)]
        raises_everywhere(ValueError, text, lambda p=tensors: changed_by(agreement, x, parameters=p))
    assert changed_by(agreement, x, parameters=[x, torch.ones(3)])


def test_an_operator_alone_and_within_a_layer(everyone, total_of):
    agreement = agreement_on(everyone)
    short, long = torch.ones(2), torch.ones(5)
    for x in (short, long, short):
        assert total_of(long).shape == (5,)
        for _ in range(2):
            with call(agreement, x):
                assert torch.equal(total_of(x), x * job.size)
        assert total_of(short).shape == (2,)


def test_an_operator_several_times_in_one_call(everyone, total_of):
    """Where a rank cannot know whether the tensors of others changed, they vote."""
    agreement, x = agreement_on(everyone), torch.ones(2)
    for size in (3, 4, 4, 3):
        with call(agreement, x):
            assert total_of(x).shape == (2,)
            assert total_of(torch.ones(size).requires_grad_()).requires_grad
            assert total_of(x).shape == (2,)


def test_a_layer_within_a_layer(everyone, total_of):
    outer, inner, x = agreement_on(everyone), agreement_on(everyone), torch.ones(2)

    def layer(tensor):
        with call(outer, tensor):
            a = total_of(tensor)
            with call(inner, tensor) as changed:
                b = primitive_within(tensor)
            return a, b, changed

    primitive_within = operators.all_sum_reduce(everyone, [0])
    layer(x)
    assert votes_of(lambda: layer(x)) == one_if_parallel()
    assert not layer(x)[2]
    longer = torch.ones(3)
    assert [part if isinstance(part, bool) else part.shape[0] for part in layer(longer)] == [3, 3, True]
    assert changed_by(inner, x)  # alone
    assert layer(longer)[2]
    needs = longer.clone().requires_grad_(job.rank == 0)
    a, b, changed = layer(needs)
    assert (a.requires_grad, b.requires_grad, changed) == (True, True, False)


def test_a_layer_twice_within_a_layer(everyone):
    outer, inner, x = agreement_on(everyone), agreement_on(everyone), torch.ones(2)
    other = torch.ones(3) if job.rank == 0 else x
    for _ in range(3):
        with call(outer, x):
            changed_by(inner, x)
            assert changed_by(inner, other)


def test_a_layer_within_whose_input_alone_changes(everyone):
    outer, inner, x, longer = agreement_on(everyone), agreement_on(everyone), torch.ones(2), torch.ones(3)
    changes = []
    for tensor in (x, x, longer, longer, x):
        with call(outer, x):
            changes.append(changed_by(inner, tensor))
    assert changes == [True, False, True, False, True]


def test_an_operator_on_some_of_the_ranks(everyone):
    """Within a layer on all ranks it goes by the layer; within a layer on fewer ranks than its own it votes."""
    outer, total = agreement_on(everyone), operators.all_sum_reduce(everyone, [0])
    first = everyone.create_partition_inclusive([0])
    inner, x = agreement_on(first), torch.ones(2)
    copied = operators.broadcast(first, first)

    def layer():
        with call(outer, x), call(inner, x):
            assert torch.equal(total(x), x * job.size)
            assert torch.equal(copied(x), x)

    layer()
    assert votes_of(layer) == one_if_parallel()


def test_an_operator_whose_input_the_layer_says_nothing_of(everyone, total_of):
    """Each rank looks at its own tensor alone: to find this is help for authors of layers."""
    agreement, x = agreement_on(everyone), torch.ones(2)
    with call(agreement, x):
        total_of(x)
    with call(agreement, x), pytest.raises(RuntimeError, match=r"AllSumReduce: .* another shape.* around it"):
        total_of(torch.ones(3))
    with call(agreement, x), pytest.raises(RuntimeError, match=r"AllSumReduce: .* takes part in differentiation"):
        total_of(x.clone().requires_grad_())
    with call(agreement, x):
        assert total_of(x).shape == (2,)
    with call(agreement, x):
        agreement.forget()
        assert total_of(torch.ones(3)).shape == (3,)


def test_errors_of_operators_within(everyone, total_of):
    agreement, x = agreement_on(everyone), torch.ones(2)
    for _ in range(2):
        with call(agreement, x):
            match = "AllSumReduce: the input of rank 0 is of type str"
            raises_everywhere(TypeError, match, lambda: total_of("text" if job.rank == 0 else x))
        agreement.forget()
    with call(agreement, x):
        assert total_of(x).shape == (2,)


def test_left_calls(everyone, total_of):
    outer, inner, x = agreement_on(everyone), agreement_on(everyone), torch.ones(2)
    outer.leave()
    outer.agree([x], [])
    inner.agree([x], [])
    outer.leave()  # also what began within
    inner.leave()
    total_of(x)
    assert votes_of(lambda: total_of(x)) == one_if_parallel()


def test_other_threads_wait(everyone):
    agreement, x, done = agreement_on(everyone), torch.ones(2), []
    thread = threading.Thread(target=lambda: done.append(changed_by(agreement, x)))
    with call(agreement, x):
        thread.start()
        thread.join(0.2)
        assert not done
    thread.join()
    assert done == [False]


def test_structure_check_off(everyone, total_of):
    agreement, x = agreement_on(everyone), torch.ones(2)

    def layer():
        with call(agreement, x):
            total_of(x)

    layer()
    with distdl.structure_check(False):
        assert votes_of(layer) == one_if_parallel()  # that all ranks turned it off
        assert votes_of(layer) == 0
        with pytest.raises(RuntimeError, match="changed while the structure check is off"):
            changed_by(agreement, torch.ones(3))
    assert votes_of(layer) == one_if_parallel()


def test_a_copy_has_calls_of_its_own(everyone, total_of):
    agreement, x = agreement_on(everyone), torch.ones(2)
    changed_by(agreement, x)
    other = copy.deepcopy(agreement)
    assert changed_by(other, x)
    assert not changed_by(other, x)
    assert changed_by(other, torch.ones(3))
    assert not changed_by(agreement, x)


def test_blocks(everyone):
    agreement = agreement_on(everyone, "input", "target")
    changed_by(agreement, torch.ones(2), torch.ones(job.rank + 1))
    assert agreement.blocks(1, "P_x", [job.size], everyone.ranks) == [list(range(1, job.size + 1))]
    with pytest.raises(ValueError, match=r"P_t has shape .*must have as many dimensions"):
        agreement.blocks(0, "P_t", [job.size, 1], everyone.ranks)
