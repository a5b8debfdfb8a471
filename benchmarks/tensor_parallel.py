"""Models of the package transformers, split by the plans that they carry, beside themselves in one process.

``pip install transformers``, then ``mpiexec -n 3 python -m mpi4py benchmarks/tensor_parallel.py``. Models are made from
configurations, and compute in float64, also where they ask for float32. A line for each says the largest relative
errors of the loss, of gradients, and of parameters after a step of Adam, the largest share of a split parameter on a
rank, and the bytes that a rank has received.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from mpi4py import MPI

import distdl

VOCABULARY = 48
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 32}
HEADS = {"num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 96}
GPT2_PLAN = {
    "transformer.wte": "embedding_rowwise", "*.c_attn": "colwise", "*.c_fc": "colwise", "*.c_proj": "rowwise"
}  # fmt: skip


def models() -> Iterator[tuple[str, torch.nn.Module, Mapping[str, str]]]:
    """Small models, with their plans."""
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS))
    yield "Llama", llama, llama.tp_plan
    grouped = HEADS | {"num_key_value_heads": 4}
    qwen = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SIZES, **grouped, head_dim=4, tie_word_embeddings=True)
    )
    yield "Qwen3, tied", qwen, qwen.tp_plan
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=12, n_positions=32, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    yield "GPT-2", transformers.GPT2LMHeadModel(config), GPT2_PLAN
    neox = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**SIZES, num_attention_heads=12, intermediate_size=96, hidden_dropout=0)
    )
    yield "GPT-NeoX", neox, neox.tp_plan
    experts = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, **HEADS, num_local_experts=4, experts_implementation="batched_mm")
    )
    yield "Mixtral", experts, experts.tp_plan


def loss_of(logits: torch.Tensor, labels: torch.Tensor, *sizes: int, **others: object) -> torch.Tensor:
    """The loss of transformers, without a conversion to float32."""
    following = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return float((ours - expected).detach().abs().max() / expected.detach().abs().max().clamp_min(1e-30))


def compare(name: str, model: torch.nn.Module, plan: Mapping[str, str], P_x: distdl.Partition) -> None:
    """Print the errors of a model in blocks."""
    model = model.double()
    model.loss_function = loss_of
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (2, 14), generator=generator)
    labels = torch.randint(VOCABULARY, (2, 14), generator=generator)
    alone = copy.deepcopy(model)
    ours = distdl.distribute(model, P_x, plan=plan)
    results = []
    for each, arguments in (ours, [distdl.scatter(x, P_x) for x in (ids, labels)]), (alone, [ids, labels]):
        optimizer = torch.optim.Adam(each.parameters(), lr=1e-3, eps=1e-3)
        distdl.reset_comm_stats()
        loss = each(input_ids=arguments[0], labels=arguments[1], use_cache=False).loss
        loss.backward()
        if each is ours:
            received = sum(stats.bytes_received for stats in distdl.comm_stats().values())
        optimizer.step()
        results.append(loss.detach())
    gradients, state = distdl.sequential_gradients(ours), distdl.sequential_state_dict(ours)
    split = {key: layout for key, layout in ours.layouts.items() if any(axis is not None for axis in layout.axes)}
    share = max(ours.get_parameter(key).numel() / torch.Size(layout.shape).numel() for key, layout in split.items())
    share, received = MPI.COMM_WORLD.allreduce(share, MPI.MAX), MPI.COMM_WORLD.allreduce(received, MPI.MAX)
    if P_x.rank == 0:
        of_gradients = max(error(gradients[key], each.grad) for key, each in alone.named_parameters())
        of_steps = max(error(state[key], each) for key, each in alone.named_parameters())
        print(
            f"{name:12} {len(split)} of {len([*alone.parameters()])} parameters split, at most {share:.2f} of each; "
            f"errors {error(*results):.0e} {of_gradients:.0e} {of_steps:.0e}; {received / 2**20:.2f} MiB"
        )


def main() -> None:
    transformers.logging.set_verbosity_error()
    chosen = sys.argv[1:]
    P_world = distdl.Partition()
    P_x = P_world.create_cartesian_topology_partition([1, P_world.size])
    torch.manual_seed(0)
    for name, model, plan in models():
        if not chosen or any(word in name for word in chosen):
            double = mock.patch.object(torch.Tensor, "float", torch.Tensor.double)
            with mock.patch.object(torch, "float32", torch.float64), double:
                compare(name, model, plan, P_x)


if __name__ == "__main__":
    main()
