"""Ways to split a model that distdl.plans proposes."""

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

import distdl
from distdl.models.plan.feature_words import feature_words
from distdl.models.planned_model import PlannedModel
from support.distributed import assert_equal_models, assert_none, off
from support.models import Experts, Line, Residual, Volume
from support.ranks import job, raises_everywhere, together

P_world = distdl.Partition(job)
pytestmark = pytest.mark.shared


def of(model, shape):
    """All proposals."""
    return distdl.plans(model, P_world, shape, most=1000)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Residual, (3, 2, 8, 8)), (Line, (2, 2, 11)), (Volume, (2, 1, 6, 5, 4))],
    ids=["2d", "1d", "3d"],
)
def test_every_proposal_gives_the_numbers_of_the_model(make, shape):
    torch.manual_seed(0)
    model = make().double()
    splits = of(model, shape)
    kinds = {(tuple(split.P_x.shape), tuple(split.plan)): split for split in splits}
    for split in [*kinds.values()][:: max(1, len(kinds) // 8)]:
        assert_equal_models(model, shape, [*map(int, split.P_x.shape)], plan=split.plan)


def test_proposals_are_ordered_and_the_same_on_all_ranks():
    with torch.device("meta"):
        model = Residual()
    splits = of(model, (4, 2, 64, 64))
    assert len(set(together(str([(str(split), split.memory, split.sent, split.seconds) for split in splits])))) == 1
    times = [split.seconds for split in splits]
    assert all(time >= 0.95 * max(times[: i + 1]) for i, time in enumerate(times))  # thicker blocks come first
    assert len({str(split) for split in splits}) == len(splits)
    lines = str(splits).splitlines()
    assert len(lines) - len(splits) in (2, 3)  # the names of columns, why others come first, and the answer
    assert lines[-1].startswith("fits in")
    assert len(distdl.plans(model, P_world, (4, 2, 64, 64), most=2)) == min(2, len(splits))
    alone = next(split for split in splits if split.P_x.size == 1 and not split.plan)
    assert alone.sent == 0
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert (alone.parts.weights, alone.parts.optimizer) == (weights, 2 * weights)  # of Adam
    assert alone.memory == alone.parts.total
    for split in splits:
        if split.P_x.size == P_world.size > 1 and not split.plan:
            assert split.sent > 0
            assert split.memory < alone.memory


@pytest.mark.ranks(1)
def test_a_checkpoint_computes_the_forward_pass_once_more():
    machine, seconds = distdl.Machine(), []
    for wraps in (False, True):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        if wraps:
            apply_activation_checkpointing(model)
        (alone,) = distdl.plans(model, P_world, (2, 4), machine=machine)
        seconds.append(alone.seconds)
    assert seconds[1] == pytest.approx(seconds[0] * 4 / 3)


def test_mistakes_raise_on_all_ranks():
    raises_everywhere(TypeError, "torch.nn.Module", lambda: distdl.plans(torch.relu, P_world, (1, 2)))
    raises_everywhere(ValueError, "input_shape", lambda: distdl.plans(Residual(), P_world, "2x2"))
    raises_everywhere(ValueError, "most", lambda: distdl.plans(Residual(), P_world, (1, 2, 4, 4), most=0))
    raises_everywhere(Exception, "channels", lambda: of(Residual(), (1, 5, 4, 4)), seconds=20.0)
    if P_world.size > 1:
        shape = (1, 2, 4, 4 + job.rank)
        raises_everywhere(ValueError, "different things", lambda: of(Residual(), shape))
        model = torch.relu if job.rank else Residual()
        raises_everywhere(TypeError, "torch.nn.Module", lambda: distdl.plans(model, P_world, (1, 2, 4, 4)))


def test_layers_over_partitions_are_refused():
    P_x = P_world.create_cartesian_topology_partition([job.size, 1])
    distributed = distdl.distribute(torch.nn.Linear(3, 2), P_x)
    for model in (distributed, torch.nn.Sequential(distdl.nn.DistributedLinear(P_x, 3, 2))):
        raises_everywhere(TypeError, "^plans: .* holds a .*, a layer over partitions", lambda m=model: of(m, (4, 3)))
        refused = "distribute: .* holds a .*, a layer over partitions"
        raises_everywhere(TypeError, refused, lambda m=model: distdl.distribute(m, P_x))


class Gated(torch.nn.Module):
    """An embedding, attention, a gated network, a norm, and scores by the weights of the embedding."""

    def __init__(self, rows=8, features=16, hidden=256):
        super().__init__()
        self.rows, self.norm = torch.nn.Embedding(rows, features), torch.nn.LayerNorm(features)
        self.attention = torch.nn.MultiheadAttention(features, 4, batch_first=True)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict({
                "gate": torch.nn.Linear(features, hidden), "up": torch.nn.Linear(features, hidden),
                "down": torch.nn.Linear(hidden, features),
            }) for _ in range(2)
        )  # fmt: skip
        self.scores = torch.nn.Linear(features, rows, bias=False)
        self.scores.weight = self.rows.weight

    def forward(self, x):
        x = self.rows(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        for layer in self.layers:
            y = self.norm(x)
            x = x + layer["down"](torch.relu(layer["gate"](y)) * layer["up"](y))
        return self.scores(x)


def indices(batch=2, tokens=8):
    return torch.arange(batch * tokens).reshape(batch, tokens) % 8


def test_words_by_the_structure_of_a_model():
    model = Gated()
    recording = PlannedModel(model, [((2, 8), torch.long)]).recording
    layers = {"layers.*.gate": "colwise", "layers.*.up": "colwise", "layers.*.down": "rowwise"}
    everything = {"rows": "embedding_rowwise", "attention": "colwise", **layers}  # scores have the weight of rows
    assert feature_words(model, recording, 4) == [everything, {"attention": "colwise", **layers}]
    assert feature_words(model, recording, 8) == [{name: word for name, word in everything.items()
                                                   if name != "attention"}, layers]  # fmt: skip
    assert feature_words(model, recording, 300) == []
    model.tp_plan = {"layers.*.up": "colwise", "layers.*.other": "rowwise"}
    assert feature_words(model, recording, 300) == [model.tp_plan]


def test_words_of_experts_and_of_embeddings_alone():
    experts = Experts()
    recording = PlannedModel(experts, [((2, 6, 4), torch.float32)]).recording
    words = {"router": "colwise", "first": "grouped_gemm", "second": "grouped_gemm"}
    assert feature_words(experts, recording, 3) == [words, {"first": "grouped_gemm", "second": "grouped_gemm"}]
    embedding = torch.nn.Sequential(torch.nn.Embedding(8, 6), torch.nn.Linear(6, 7))
    recording = PlannedModel(embedding, [((2, 6), torch.long)]).recording
    assert feature_words(embedding, recording, 2)[0] == {"0": "embedding_colwise", "1": "colwise"}


class Packed(torch.nn.Module):
    """Layers whose results are cut into three, two, or other parts."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        self.both, self.down, self.uneven = torch.nn.Linear(8, 20), torch.nn.Linear(10, 8), torch.nn.Linear(8, 12)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 4, 24).chunk(3, -1)
        y = self.out(q * k * v)
        a, b = self.both(y).chunk(2, -1)
        return self.down(a * b) + self.uneven(x)[..., :8]


def test_words_of_packed_layers():
    recording = PlannedModel(Packed(), [((2, 4, 8), torch.float32)]).recording
    words = {"qkv": "packed_colwise", "out": "rowwise", "both": "packed_colwise", "down": "rowwise",
             "uneven": "colwise"}  # fmt: skip
    assert feature_words(Packed(), recording, 4) == [words]


def test_features_are_split_where_it_pays():
    torch.manual_seed(0)
    n, model = P_world.size, Gated().double()
    proposals = distdl.plans(model, P_world, indices().to("meta"), most=1000)
    by_words = [proposal for proposal in proposals if any(isinstance(way, str) for way in proposal.plan.values())]
    assert bool(by_words) == (n > 1)
    for proposal in by_words:
        alike = next(p for p in proposals if not p.plan and tuple(p.P_x.shape) == tuple(proposal.P_x.shape))
        assert proposal.memory < alike.memory or proposal.seconds < alike.seconds
        assert "wise" in str(proposal)
    for proposal in by_words[:3]:
        ours = distdl.distribute(model, proposal.P_x, plan=proposal.plan)
        if proposal.P_x.size < n:
            continue
        y = distdl.gather(ours(distdl.scatter(indices(), proposal.P_x)), ours.output_partition)
        assert_none([off(y, model(indices()), 1e-12) if job.rank == 0 else ""])
        assert ours.layers[0]["up"].weight.shape[0] in (256 // n, 256 // n + 1)
    with torch.device("meta"):
        wide = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512))
    found = distdl.plans(wide, (4, 512), ranks=4, machine=distdl.Machine(memory="12MiB"))
    assert found[0].plan == {"0": "colwise", "2": "rowwise"}  # nothing else fits
    assert found[0].parts.weights * 4 == 4 * (2 * 512 * 2048 + 2048) + 4 * 4 * 512
