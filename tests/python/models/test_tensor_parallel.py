"""Models whose features, heads, vocabularies and experts are split, with their parameters in blocks."""

import copy

import pytest
import torch
import torch.nn.functional as F

import distdl
from support.blocks import grid
from support.distributed import assert_equal_models, assert_none, off
from support.models import Experts
from support.ranks import job, raises_everywhere, together

P_world = distdl.Partition(job)
N = P_world.size


class Block(torch.nn.Module):
    """A block of a transformer: attention with fewer heads of keys, and a gated network."""

    def __init__(self, features, heads, keys, hidden):
        super().__init__()
        self.size = features // heads
        self.norm = torch.nn.LayerNorm(features)
        self.q, self.k, self.v = (torch.nn.Linear(features, n * self.size, bias=False) for n in (heads, keys, keys))
        self.out = torch.nn.Linear(features, features)
        self.gate, self.up, self.down = (torch.nn.Linear(*sizes) for sizes in (
            (features, hidden), (features, hidden), (hidden, features)))  # fmt: skip

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (each(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for each in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Language(torch.nn.Module):
    """A language model with its loss. `tp_plan` is as models of transformers carry it."""

    tp_plan = {
        "embedding": "embedding_rowwise", "blocks.*.[qkv]": "colwise", "blocks.*.out": "rowwise",
        "blocks.*.gate": "colwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise",
        "head": "colwise_gather_output", "blocks.*.moe.router": "replicate", "blocks.*.q_norm": "colwise",
    }  # fmt: skip

    def __init__(self, vocabulary=11, features=12, heads=6, keys=3, hidden=10, tied=False, **options):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, features, padding_idx=2)
        self.blocks = torch.nn.ModuleList(Block(features, heads, keys, hidden) for _ in range(2))
        self.head = torch.nn.Linear(features, vocabulary, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight
        self.options = options

    def forward(self, ids, labels=None):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        scores = self.head(x)
        return scores if labels is None else F.cross_entropy(scores.flatten(0, 1), labels.flatten(), **self.options)


def tokens(batch=2, length=7, vocabulary=11):
    """Ids of all kinds, with the first and the last of each worker's part of the vocabulary."""
    ids = (3 * torch.arange(batch * (length + 1)) % vocabulary).reshape(batch, length + 1)
    labels = ids[:, 1:].clone()
    labels[0, 2] = -100
    return ids[:, :-1].contiguous(), labels


def trained(model, call, steps=3):
    """The losses of some steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = call(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_trained_alike(model, split, plan, data=None):
    """Losses, parameters and gradients after some steps of Adam. Returns the model over partitions."""
    data = tokens() if data is None else data
    sequential = copy.deepcopy(model)
    P_x = grid(P_world, split)
    ours = distdl.distribute(model, P_x, plan=plan)
    blocks = [distdl.scatter(x, P_x) for x in data]
    losses = trained(ours, lambda model: model(*blocks))
    expected = trained(sequential, lambda model: model(*data))
    state, gradients = distdl.sequential_state_dict(ours), distdl.sequential_gradients(ours)
    problems = [] if losses == pytest.approx(expected, rel=1e-12) else [f"losses {losses}, not {expected}"]
    if job.rank == 0:
        problems += [off(state[name], value, 1e-9) for name, value in sequential.state_dict().items()]
        problems += [off(gradients[name], each.grad, 1e-9) for name, each in sequential.named_parameters()]
    assert_none([" ".join(filter(None, problems))])
    return ours


@pytest.mark.parametrize("options", [
    {}, {"tied": True}, {"reduction": "sum", "label_smoothing": 0.1},
    {"weight": torch.linspace(0.5, 1.5, 11, dtype=torch.float64), "label_smoothing": 0.2},
    {"heads": 4, "keys": 2, "hidden": 9},
], ids=["plain", "tied", "sum", "weights", "other_sizes"])  # fmt: skip
def test_a_language_model_trains_alike(options):
    torch.manual_seed(0)
    model = Language(**options).double()
    for split in ([1, N], [N, 1]):
        ours = assert_trained_alike(model, split, model.tp_plan)
    for name, parameter in ours.named_parameters():
        if "norm" not in name and not name.endswith(("out.bias", "down.bias")):
            whole = list(ours.layouts[name].shape)
            split = 1 if name.endswith(("out.weight", "down.weight")) else 0
            whole[split] = whole[split] // N + (job.rank < whole[split] % N)
            assert list(parameter.shape) == whole, name


@pytest.mark.mpi(min_size=2)
def test_scores_stay_with_their_classes():
    """A loss is computed where the head has computed the scores of each class, unless the classes are few."""
    model = Language(vocabulary=44)
    for reduction in ("mean", "sum", "none"):
        model.options = {"reduction": reduction}
        ours = distdl.distribute(model, grid(P_world, [1, N]), plan=model.tp_plan)
        ours(*(distdl.scatter(x, ours.P_x) for x in tokens()))
        of_loss = [step.workers.splits for step in ours.program.plan.steps if step.node.key == "cross_entropy"]
        assert of_loss == [(1, N)], reduction


class Network(torch.nn.Module):
    """Two layers, with a residual connection."""

    def __init__(self, features=5, hidden=7):
        super().__init__()
        self.norm = torch.nn.LayerNorm(features)
        self.up, self.down = torch.nn.Linear(features, hidden), torch.nn.Linear(hidden, features)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def test_features_of_linear_layers():
    torch.manual_seed(0)
    columns = {"up": [1, 1, N]}
    for plan in ({"up": "colwise", "down": "rowwise"}, columns, columns | {"down": "rowwise"}, {"*": "colwise"}):
        for split in ([1, N, 1], [N, 1, 1], [1, 1, N]):
            ours = assert_equal_models(Network().double(), (2, 5, 5), split, plan=plan)
        own = ours.up.weight
        assert own.shape == (7 // N + (job.rank < 7 % N), 5)
        assert plan == columns or ours.down.weight.numel() < 35 or N == 1
    assert_equal_models(Network().double(), (5,), [N], plan={"up": "colwise", "down": "rowwise"})


@pytest.mark.parametrize("kind", ["owner", "sharded", "replicated"])
def test_features_and_batch(kind):
    """A block of a weight that several workers use travels among these alone."""
    torch.manual_seed(0)
    splits = [[2, 1, N // 2], [N // 2, 1, 2]] if N % 2 == 0 else [[1, 1, N]]
    for split in splits:
        with distdl.parameter_layout(kind):
            assert_equal_models(Network().double(), (4, 5, 5), [N, 1, 1], plan={"up": split})
            assert_equal_models(Network().double(), (4, 5, 5), [1, N, 1], plan={"": split})


def test_experts():
    torch.manual_seed(0)
    for words in ("grouped_gemm", "rowwise"):
        ours = assert_equal_models(
            Experts().double(), (2, 6, 4), [1, N, 1], plan={"first": words, "second": "grouped_gemm"}
        )
        assert ours.second.shape == (5 // N + (job.rank < 5 % N), 5, 4)
    steps = ours.program.plan.steps
    assert all(regions is None for step in steps for value, regions in zip(step.node.inputs, step.input_regions,
               strict=True) if value.name == "second")  # fmt: skip


def test_no_weights_travel():
    """Of what travels, the bytes of weights are none: they exceed all values between the layers."""
    torch.manual_seed(0)
    model = Network(hidden=64 * N).double()
    del model.norm.weight, model.norm.bias
    model.norm.weight = model.norm.bias = None
    P_x = grid(P_world, [1, N, 1])
    ours = distdl.distribute(model, P_x, plan={"up": "colwise", "down": "rowwise"})
    x = distdl.scatter(torch.ones(1, N, 5, dtype=torch.float64), P_x)
    ours(x).sum().backward()
    distdl.reset_comm_stats()
    ours(x).sum().backward()
    received = sum(stats.bytes_received for stats in distdl.comm_stats().values())
    values, bias = 8 * 5 * N, 8 * 5
    assert all(count <= 4 * values + 4 * N * bias for count in together(received))
    assert together(received)[0] < ours.up.weight.nbytes or N == 1


def test_layers_of_one_rank_make_the_same_file(tmp_path):
    """A checkpoint of a split model is that of the sequential model."""
    path = together(str(tmp_path / "model.safetensors"))[0]
    torch.manual_seed(0)
    model = Language().double()
    P_x = grid(P_world, [1, N])
    distdl.save(path, distdl.distribute(model, P_x, plan=model.tp_plan))
    other = distdl.distribute(Language().double(), grid(P_world, [N, 1]))
    distdl.load(path, other)
    state = distdl.sequential_state_dict(other)
    assert_none([" ".join(off(state[name], value, 1e-15) for name, value in model.state_dict().items()).strip()
                 if job.rank == 0 else ""])  # fmt: skip


def test_plans_that_cannot_be_followed_raise_on_all_ranks():
    P_x, model = grid(P_world, [1, N]), Language()
    for kind, plan, message in (
        (ValueError, {"embedding": "columns"}, r"plan\['embedding'\]='columns'; the words are colwise"),
        (
            ValueError,
            {"blocks.*.norm": "colwise"},
            r"plan\['blocks.\*.norm'\]='colwise' cannot be followed: it splits",
        ),
        (ValueError, {"blocks.*.q_norm": "rowwise", "hea": "colwise"}, "'hea'.*: no module of the model has such a"),
        (TypeError, {"head": ("colwise",)}, "a distdl.Partition, or the numbers of workers"),
    ):
        raises_everywhere(kind, message, lambda plan=plan: distdl.distribute(model, P_x, plan=plan))
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    words = {"0": "colwise", "1": "rowwise"}
    message = r"plan\['1'\]='rowwise' cannot be followed: .* it names; 1 is a Tanh"
    raises_everywhere(ValueError, message, lambda: distdl.distribute(layers, P_x, plan=words))
    if N > 1:
        other = "rowwise" if job.rank else "colwise"
        raises_everywhere(ValueError, "different things", lambda: distdl.distribute(model, P_x, plan={"head": other}))
        whole = distdl.distribute(Whole(), grid(P_world, [1, N, 1]), plan={"layer": "colwise"})
        x = distdl.scatter(torch.ones(2, 4, 3), whole.P_x)
        raises_everywhere(ValueError, "det in the model reads more than a worker's block", lambda: whole(x))


class Whole(torch.nn.Module):
    """An operation that reads a whole weight."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        return x * torch.linalg.det(self.layer.weight) + self.layer.bias.sum()
