"""Models that do what a recording would not show: refused on all ranks, never lost."""

import random

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import assert_equal_models, assert_none, noise, off
from support.ranks import job, raises_everywhere

P_world = distdl.Partition(job)
pytestmark = pytest.mark.shared


class Model(torch.nn.Module):
    """A layer, a parameter, a buffer and a tensor that is neither, with which a function computes."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.weight = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.ones(3))
        self.plain, self.function = torch.ones(3), function
        self.trained = {"scales": [torch.ones(3, requires_grad=True)]}

    def forward(self, x):
        return self.function(self, self.layer(x) * self.weight)


def hooked(model, y):
    y.register_hook(lambda gradient: 2 * gradient)
    return y


def shown_again(model, y):
    y.detach().mul_(2.0)
    return y


def replaced(model, y):
    y.data = 2 * y.detach()
    return y


def weight_written(model, y):
    model.weight.data.mul_(0.5)
    return y


def buffer_written(model, y):
    model.mean.view(3, 1)[0].add_(1.0)
    return y


def plain_written(model, y):
    model.plain.add_(1.0)
    return y * model.plain


def trained_plain(model, y):
    return y + model.trained["scales"][0].exp()


def trained_returned(model, y):
    return y, model.trained["scales"][0]


def several_written(model, y):
    z = y.clone()
    torch._foreach_mul_([z], 2.0)
    return z


def written_unseen(model, y):
    z = y.clone()
    with torch._C.DisableTorchFunction():  # as what torch.jit.script makes
        z.mul_(2.0)
    return z


def kept_otherwise(model, y):
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: 2 * x):
        return y.sin()


def inferred(model, y):
    with torch.inference_mode():
        z = 2 * y
    return y + z


def drawn_by_python(model, y):
    return y if random.random() < 0.5 else 2 * y


def seeded(model, y):
    torch.manual_seed(0)
    return y + torch.rand_like(y)


def derived(model, y):
    return torch.autograd.grad(y.sin().sum(), y, create_graph=True)[0]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (hooked, "hook"),
        (shown_again, "same memory"),
        (replaced, "data of a tensor is replaced"),
        (weight_written, "writes into its parameter weight after"),
        (buffer_written, "writes into mean"),
        (plain_written, "neither parameter nor buffer"),
        (trained_plain, r"trained\[0\] asks for gradients.*torch.nn.Parameter"),
        (trained_returned, r"trained\[0\] asks for gradients.*returns it"),
        (several_written, "_foreach_mul_ writes"),
        (written_unseen, "cannot be recorded"),
        (kept_otherwise, "saved_tensors_hooks"),
        (inferred, "inference_mode"),
        (drawn_by_python, "Python or NumPy"),
        (seeded, "seeds torch's random numbers"),
        (derived, "derivatives within"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_recording_would_not_show_is_refused(function, words):
    ours = distdl.distribute(Model(function), grid(P_world, [P_world.size, 1]))
    x = torch.ones(1, 3, requires_grad=True)
    torch.manual_seed(1)  # otherwise than a model that seeds
    raises_everywhere(NotImplementedError, words, lambda: ours(x), seconds=20.0)


def trained_detached(model, y):
    with torch.no_grad():
        scale = model.trained["scales"][0].exp()
    return y * scale + model.trained["scales"][0].detach()


def test_plain_tensors_may_ask_for_gradients_that_nobody_takes():
    assert_equal_models(Model(trained_detached).double(), (4, 3), [P_world.size, 1])


def test_attributes_computed_from_parameters_are_refused():
    model = Model(plain_written)
    model.layer.scale = 2 * model.weight
    P_x = grid(P_world, [P_world.size, 1])
    raises_everywhere(NotImplementedError, "scale of layer is computed from", lambda: distdl.distribute(model, P_x))


class Gated(torch.nn.Module):
    """To be scripted or compiled."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        return x * self.layer(x).sigmoid()


def doubled(x):
    return x * 2.0


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated")
def test_scripted_modules_are_refused_by_name():
    P_x = grid(P_world, [P_world.size, 1])
    for made in (torch.jit.script(Gated()), torch.jit.trace(Gated(), torch.ones(1, 3))):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), made)
        words = r"1 is a module that torch\.jit has scripted or traced"
        raises_everywhere(NotImplementedError, words, lambda model=model: distdl.distribute(model, P_x))
        ours = distdl.distribute(Model(lambda model, y, made=made: made(y)), P_x)  # it is no module of the model
        raises_everywhere(
            NotImplementedError, r"torch\.jit has", lambda ours=ours: ours(torch.ones(1, 3)), seconds=20.0
        )


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated")
def test_scripted_functions_and_compiled_modules_compute_as_written():
    torch.manual_seed(0)
    scripted = torch.jit.script(doubled)
    model = Model(lambda model, y: scripted(y) + 1.0).double()
    assert_equal_models(model, (4, 3), [P_world.size, 1])
    assert_equal_models(
        torch.nn.Sequential(torch.compile(Gated(), backend="eager")).double(), (4, 3), [P_world.size, 1]
    )


class Scaled(torch.nn.Conv1d):
    """Changes a method behind forward()."""

    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, 3 * weight, bias)


def test_layers_with_other_methods_compute_as_these_say():
    torch.manual_seed(0)
    model = torch.nn.Sequential(Scaled(2, 2, 1), torch.nn.Conv1d(2, 2, 1)).double()
    model[1].forward = torch.sin
    for size in (P_world.size, 1):
        assert_equal_models(model[:1], (2, 2, 4), [1, 1, size])
        ours = distdl.distribute(model, grid(P_world, [1, 1, size]))
        x = distdl.scatter(noise((2, 2, 4)), ours.P_x)
        y = distdl.gather(ours(x), ours.output_partition)
        assert_none([off(y, model[0](noise((2, 2, 4))).sin())])


class Aliases(torch.nn.Module):
    """Writes into copies, which are no copies of some blocks."""

    def forward(self, x):
        x = x.sin()
        moved = x.transpose(0, 1).contiguous()
        moved += 1.0
        flat = x.transpose(0, 2).reshape(-1)
        flat.mul_(2.0)
        rolled = torch.roll(x, 1, 0)
        torch.nn.functional.relu(rolled, inplace=True)
        return x, moved, flat, rolled


def test_copies_that_are_written_into_are_copies_of_blocks_too():
    for shape in ((max(2, P_world.size), 3, 4), (2, 3, 2), (2, 2, 2)):
        for d in range(3):
            assert_equal_models(Aliases(), shape, [P_world.size if e == d else 1 for e in range(3)])


def in_another_autocast(model, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = torch.nn.functional.linear(y, model.layer.weight)
    with torch.autocast("cpu", enabled=False):
        exact = y.float() @ model.layer.weight
        return half, exact, model.layer(y.float())


@pytest.mark.parametrize("outer", [False, True])
def test_autocast_changed_within_a_model(outer):
    torch.manual_seed(0)
    model, P_x = Model(in_another_autocast), grid(P_world, [P_world.size, 1])
    whole = noise((5, 3)).float()
    ours = distdl.distribute(model, P_x)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=outer):
        results = distdl.gather(ours(distdl.scatter(whole, P_x)), ours.output_partition)
        expected = model(whole)
    sum(result.float().sum() for result in results).backward()
    sum(result.float().sum() for result in expected).backward()
    gradients = distdl.sequential_gradients(ours)
    eps = 4 * torch.finfo(torch.bfloat16).eps
    wrong = [off(*pair, eps) for pair in zip(results, expected, strict=True)]
    if job.rank == 0:
        wrong += ["" if a.dtype == b.dtype else f"{a.dtype}" for a, b in zip(results, expected, strict=True)]
        named = model.named_parameters()
        wrong += [off(gradients[name], parameter.grad, eps) for name, parameter in named if parameter.grad is not None]
    assert_none([" ".join(filter(None, wrong))])


class Differing(torch.nn.Module):
    """Another model on the last rank."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind if job.rank == P_world.size - 1 else ""
        self.plain = torch.full((3,), float(self.kind == "constant"))

    def forward(self, x):
        if self.kind == "error":
            raise KeyError("only here")
        return {"steps": x.cumsum(0), "number": 3.0 * x}.get(self.kind, 2.0 * x) * self.plain


@pytest.mark.parametrize("kind", ["steps", "number", "constant", "error"])
def test_a_model_that_differs_on_one_rank_raises_on_all(kind):
    ours = distdl.distribute(Differing(kind), grid(P_world, [P_world.size, 1]))
    call = lambda: ours(torch.ones(1, 3))  # noqa: E731
    if kind == "error":
        raises_everywhere(RuntimeError if P_world.size > 1 else KeyError, "only here", call, seconds=20.0)
    elif P_world.size > 1:
        raises_everywhere(ValueError, "same on all ranks", call, seconds=20.0)


def averaged(model, y):
    model.mean.data.mul_(0.9).add_(0.1 * y.detach().mean(0))
    return y * model.mean


def test_buffers_are_written_through_their_data():
    torch.manual_seed(0)
    for split in ([P_world.size, 1], [1, P_world.size]):
        assert_equal_models(Model(averaged).double(), (4, 3), split)


def drawn_before_a_look(model, y):
    return y if (y * random.random()).sum() > 0 else -y


def test_numbers_of_python_are_refused_before_a_look():
    P_x = grid(P_world, [P_world.size, 1])
    ours = distdl.distribute(Model(drawn_before_a_look), P_x, values="agree")
    x = distdl.scatter(torch.ones(4, 3), P_x)
    raises_everywhere(NotImplementedError, "Python or NumPy", lambda: ours(x), seconds=20.0)
