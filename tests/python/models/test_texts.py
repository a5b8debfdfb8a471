"""Texts of tensors in a model, such as ``f"{x.max():.2f}"``: they are looks at values, or messages."""

import io
import logging
import warnings
from contextlib import redirect_stdout

import pytest
import torch

import distdl
from support.blocks import grid
from support.ranks import job, raises_everywhere

pytestmark = pytest.mark.ranks(1, 2, 3, 4)

log = logging.getLogger("distdl.tests.texts")


def numbers(factor=1.0):
    return torch.arange(-9.0, 15.0).reshape(4, 6) * factor


def formatted(x):
    return x * float(f"{x.max():.2f}") + len(f"{x.mean(1)}")


def converted(x):
    return x * len(str(x)) + len(repr(x.sum())) + len(f"{x[0, 0]!r:>30}")


def old_fashioned(x):
    return x * len("%s" % x.mean()) + len("{:.1f}".format(x.std()))  # noqa: UP031, UP032


def listed(x):
    return x * len(f"{[x.max(), (x.min(),)]}")


TEXTS = (formatted, converted, old_fashioned, listed)


@pytest.mark.parametrize("function", TEXTS, ids=lambda each: each.__name__)
def test_texts_are_looked_at(P_world, function):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(function, P_x, values="agree")
    for factor in (1, 2.5, 1, -70):
        x = numbers(factor)
        result = distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition)
        if job.rank == 0:
            assert torch.allclose(result, function(x))


@pytest.mark.parametrize("function", TEXTS, ids=lambda each: each.__name__)
def test_texts_are_refused_where_values_are(P_world, function):
    P_x = grid(P_world, [1, job.size])
    ours = distdl.distribute(function, P_x)
    x = distdl.scatter(numbers(), P_x)
    error = raises_everywhere(NotImplementedError, "a text looks at the values of a tensor", lambda: ours(x))
    assert "test_texts.py" in error
    assert 'values="agree"' in error


def printing(x):
    print(x.shape, x.max())
    return x


def test_a_print_of_values_is_refused_or_has_them(P_world):
    P_x = grid(P_world, [1, job.size])
    x = distdl.scatter(numbers(), P_x)
    refused, agreed = (distdl.distribute(printing, P_x, values=values) for values in ("refuse", "agree"))
    raises_everywhere(NotImplementedError, r"print\(x.shape, x.max\(\)\)", lambda: refused(x))
    for ask in (False, True):  # the text has no derivative
        with redirect_stdout(io.StringIO()) as printed:
            agreed(x.clone().requires_grad_(ask))
        assert ask or printed.getvalue().endswith("torch.Size([4, 6]) tensor(14.)\n")


def known(x):
    table = torch.linspace(0, 1, 5)
    return x * float(f"{table.max():.3f}") + len(str(table)) + len(f"{torch.zeros(2)!r}")


def test_texts_of_known_values_are_theirs(P_world):
    P_x = grid(P_world, [1, job.size])
    for values in ("refuse", "agree"):
        ours = distdl.distribute(known, P_x, values=values)
        result = distdl.gather(ours(distdl.scatter(numbers(), P_x)), ours.output_partition)
        assert job.rank or torch.equal(result, known(numbers()))


def checked(condition, message):
    if not condition:
        raise ValueError(message)


def with_messages(x):
    """Texts that a model builds and does not need."""
    n = (x > 0).sum()
    assert x.shape[0] == 4, f"{x}"
    torch._assert(x.shape[0] == 4, f"{n} of {x.shape}")
    checked(x.dim() == 2, f"tokens: {n}, features: {x.max():.2f}")
    log.debug(f"{n} {x}")
    log.debug("%s %s", n, x)
    if x.shape[1] != 6:
        raise ValueError("a bad tensor: " + str(x))
    return x * n


def test_messages_that_are_not_needed_are_no_looks(P_world):
    P_x = grid(P_world, [1, job.size])
    for values in ("refuse", "agree"):
        ours = distdl.distribute(with_messages, P_x, values=values)
        for factor in (1, -1):
            x = numbers(factor)
            result = distdl.gather(ours(distdl.scatter(x, P_x)), ours.output_partition)
            assert job.rank or torch.equal(result, with_messages(x))
        assert not ours.program.looks


def raising(x):
    if x.shape[0] == 4:
        raise ValueError(f"a bad tensor, with {x.max():.2f} at most")
    return x


def warning(x):
    warnings.warn(f"{x.max()} at most", stacklevel=1)
    return x


def asserting(x):
    assert x.max() < 2, f"{x.max():.1f} at most"
    return x


def deciding(x):
    assert len(f"{x.max():.1f}") == 4
    return x


def test_messages_that_are_needed(P_world):
    P_x = grid(P_world, [1, job.size])
    x = distdl.scatter(numbers(), P_x)
    unknown = "a tensor of shape .* values are not known"
    raises_everywhere(ValueError, f"with <{unknown}.* at most", lambda: distdl.distribute(raising, P_x)(x))
    with pytest.warns(UserWarning, match=unknown):
        distdl.distribute(warning, P_x)(x)
    raises_everywhere(NotImplementedError, "a text looks at", lambda: distdl.distribute(deciding, P_x)(x))
    agreeing = {function: distdl.distribute(function, P_x, values="agree") for function in (raising, asserting)}
    raises_everywhere(ValueError, "a bad tensor, with 14.00 at most", lambda: agreeing[raising](x))
    raises_everywhere(AssertionError, "14.0 at most", lambda: agreeing[asserting](x))
    assert torch.equal(agreeing[asserting](x / 14), x / 14)
    assert torch.equal(distdl.distribute(deciding, P_x, values="agree")(x), x)


def logging_values(x):
    log.info("%s at most", x.max())
    return x


def test_what_a_log_takes_is_looked_at_where_it_is_printed(P_world, caplog):
    P_x = grid(P_world, [1, job.size])
    x = distdl.scatter(numbers(), P_x)
    with caplog.at_level(logging.INFO, "distdl.tests.texts"):
        distdl.distribute(logging_values, P_x)(x)
        distdl.distribute(logging_values, P_x, values="agree")(x)
    assert "not known" in caplog.text
    assert "tensor(14.) at most" in caplog.text
