"""Exceptions of single ranks in a call, such as an index that is out of range in one block: all ranks raise them."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import distdl
from support.blocks import grid
from support.ranks import job, raises_everywhere, together

pytestmark = pytest.mark.ranks(1, 2, 3, 4)

SCORES = torch.arange(40.0, dtype=torch.double).reshape(8, 5).cos()
GOOD = torch.tensor([3, 1, 4, 1, 0, 2, 2, 4])


def bad(*places):
    """Indices that are too large in these places."""
    return GOOD.index_fill(0, torch.tensor(places), 9)


def looking_up(index, x):
    return F.embedding(index, x) * 2


def indexing(index, x):
    return x[index].sum() + x


def gathering(index, x):
    return torch.gather(x, 1, index[:, None]) + x.sum()


def of_loss(index, x):
    return F.cross_entropy(x * 3, index)


def of_losses(index, x):
    return F.nll_loss(x.log_softmax(1), index, reduction="none") + x.mean()


def of_classes(index, x):
    return F.one_hot(index, 5) * x


def checking(index, x):
    torch._assert_async((index < 5).all(), "an index is too large")
    return x.cumsum(0)


def checking_all(index, x):
    torch._check_tensor_all(index < 5, lambda: f"an index is too large: {index.max()}")
    return x.cumsum(0)


def factorizing(index, x):
    matrices = torch.eye(3) * (5 - index)[:, None, None]
    return torch.linalg.cholesky(matrices).sum() * x


def dividing(index, x):
    return x / F.binary_cross_entropy(index / 5, index / 9)


def of_rows(index, x):
    return checkpoint(looking_up, index, x, use_reentrant=False) + x.mean()


FUNCTIONS = (
    looking_up, indexing, gathering, of_loss, of_losses, of_classes, checking, checking_all, factorizing, dividing,
    of_rows,
)  # fmt: skip


def distributed(P_world, function, **options):
    P_index, P_x = grid(P_world, [job.size]), grid(P_world, [job.size, 1])
    ours = distdl.distribute(function, P_x, input_partitions={"index": P_index}, **options)
    return lambda index, x: ours(distdl.scatter(index, P_index), distdl.scatter(x, P_x).requires_grad_()), ours


def error_of(function, *args):
    """The kind of exception that torch raises in one process."""
    kind, text = None, ""
    try:
        function(*args)
    except Exception as error:  # not to be kept: torch before 2.13 goes on checkpointing while it lives
        kind, text = type(error), str(error)
    assert " " in text
    return kind


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("places", [(0,), (7,), (1, 6)], ids=str)
def test_all_ranks_raise_what_one_raises(P_world, function, places):
    """The call after it is computed."""
    call, ours = distributed(P_world, function)
    kind = error_of(function, bad(*places), SCORES)
    error = raises_everywhere(kind, "test_failures.py", lambda: call(bad(*places), SCORES))
    known = "is too large" if function in (checking, checking_all) else ""
    assert known in error
    y = call(GOOD, SCORES)
    y.sum().backward()
    result = distdl.gather(y, ours.output_partition) if y.dim() else y.detach()
    if job.rank == 0:
        assert torch.allclose(result, function(GOOD, SCORES))


class SplitVocabulary(torch.nn.Module):
    """Scores of words, and their loss, of which workers have some words each."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 3)
        self.head = torch.nn.Linear(3, 64)

    def forward(self, index, target):
        return F.cross_entropy(self.head(self.embedding(index)), target)


@pytest.mark.parametrize("bad_input", [0, 1], ids=["embedding", "loss"])
@pytest.mark.parametrize("value", [64, -1])
def test_a_split_vocabulary_refuses_what_one_process_does(P_world, bad_input, value):
    torch.manual_seed(0)
    model = SplitVocabulary()
    P_x = grid(P_world, [job.size])
    ours = distdl.distribute(
        copy.deepcopy(model), P_x, plan={"embedding": "embedding_rowwise", "head": "colwise_gather_output"}
    )
    good = [GOOD, GOOD.flip(0)]
    ill = [x.index_fill(0, torch.tensor([7]), value) if i == bad_input else x for i, x in enumerate(good)]
    with pytest.raises(IndexError):
        model(*ill)
    call = lambda inputs: ours(*(distdl.scatter(x, P_x) for x in inputs))  # noqa: E731
    text = raises_everywhere(IndexError, "test_failures.py", lambda: call(ill))
    assert job.size == 1 or (f"{value}" in text and "out of range for 64 rows or classes" in text)
    assert torch.allclose(call(good), model(*good))


class OutOfMemoryHere(TorchFunctionMode):
    """A rank without memory for one function."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.tanh:
            raise torch.OutOfMemoryError("no memory for tanh")
        return func(*args, **(kwargs or {}))


def test_all_ranks_raise_where_one_has_no_memory(P_world):
    """No values make tanh fail."""
    P_x = grid(P_world, [job.size, 1])
    ours = distdl.distribute(lambda x: torch.tanh(x) * 2, P_x)
    x = distdl.scatter(SCORES, P_x)
    ours(x)

    def call():
        with OutOfMemoryHere() if job.rank == job.size - 1 else nullcontext():
            ours(x)

    raises_everywhere(torch.OutOfMemoryError, "no memory for tanh", call)
    assert torch.equal(ours(x), x.tanh() * 2)


def test_without_the_structure_check_a_rank_raises_alone(P_world):
    call, _ = distributed(P_world, looking_up)
    call(GOOD, SCORES)
    with distdl.structure_check(False):
        call(GOOD, SCORES)
        try:
            call(bad(7), SCORES)
            raised = False
        except IndexError:
            raised = True
    assert together(raised) == [False] * (job.size - 1) + [True]


def test_the_first_error_of_a_rank_counts(P_world):
    def twice(index, x):
        return F.embedding(index, x)[index].cumsum(0)

    call, _ = distributed(P_world, twice)
    raises_everywhere(IndexError, "embedding: index out of range in self", lambda: call(bad(5), SCORES))


def test_buffers_of_the_model_keep_their_values(P_world):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, index, x):
            self.calls += 1
            return F.embedding(index, x)

    call, ours = distributed(P_world, Counting())
    for _ in range(2):
        call(GOOD, SCORES)
        raises_everywhere(IndexError, "out of range", lambda: call(bad(6), SCORES))
    assert ours.calls == 2


def test_no_look_finds_what_a_failure_has_left(P_world):
    def looking(index, x):
        y = F.embedding(index, x)
        if y.abs().min() < 0.001:  # as in the place of a failure
            raise ValueError("0")
        return y + 1

    call, ours = distributed(P_world, looking, values="agree")
    for index in (GOOD, bad(7), GOOD):
        if index is GOOD:
            result = distdl.gather(call(index, SCORES), ours.output_partition)
            assert job.rank or torch.equal(result, looking(index, SCORES))
        else:
            raises_everywhere(IndexError, "out of range", lambda index=index: call(index, SCORES))
    first, _ = distributed(P_world, looking, values="agree")
    raises_everywhere(IndexError, "out of range", lambda: first(bad(0), SCORES))


def test_batches_without_samples(P_world):
    def largest(x):
        return x.max() * x

    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(largest, P_x)
    x = distdl.scatter(torch.zeros(0, 8), P_x)
    kind = error_of(largest, torch.zeros(0, 8))
    raises_everywhere(kind, "max", lambda: ours(x))
    assert torch.equal(ours(x.new_ones(2, x.shape[1])), x.new_ones(2, x.shape[1]))


class OwnError(Exception):
    """An exception of a program."""


class CodedError(Exception):
    """An exception with arguments of its own."""

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


def owned(x):
    raise OwnError("number 3")


def differing(x):
    raise OwnError(f"number {job.rank}")


def coded(x):
    raise CodedError("a code", x.shape[0])


def test_exceptions_of_own_classes_keep_them(P_world):
    P_x = grid(P_world, [1, job.size])
    x = distdl.scatter(torch.zeros(4, 8), P_x)
    raises_everywhere(OwnError, "number 3", lambda: distdl.distribute(owned, P_x)(x))
    with pytest.raises(CodedError, match="a code") as caught:
        distdl.distribute(coded, P_x)(x)
    assert caught.value.code == 4


def test_own_classes_with_other_texts_on_each_rank_are_runtime_errors(P_world):
    P_x = grid(P_world, [1, job.size])
    x = distdl.scatter(torch.zeros(4, 8), P_x)
    kind = RuntimeError if job.size > 1 else OwnError
    raises_everywhere(kind, "number 0", lambda: distdl.distribute(differing, P_x)(x))
