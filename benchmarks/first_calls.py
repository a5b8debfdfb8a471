"""Times what comes before the first step of a model in one call: distdl.distribute, the first call, and a new shape.

mpiexec -n 2 python -m mpi4py benchmarks/first_calls.py

In seconds of processor time on rank 0, for deep models with the batch in two, beside a call of the same model without
values (torch's FakeTensorMode) and an ordinary one. All but the last have few features. Needs the package transformers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers as hf
from mpi4py import MPI
from torch._subclasses.fake_tensor import FakeTensorMode

import distdl

TOKENS, WORDS = 32, 500


def models() -> dict[str, Callable[[], Any]]:
    """Language models, which are made when they are called."""
    words = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0}
    gpt = hf.GPT2Config(n_layer=12, n_embd=192, n_head=4, use_cache=False, **words)
    released = hf.GPT2Config(use_cache=False)  # 124 million parameters
    bert = hf.BertConfig(num_hidden_layers=24, hidden_size=96, num_attention_heads=4, intermediate_size=128, **words)
    llama = hf.LlamaConfig(num_hidden_layers=16, hidden_size=96, num_attention_heads=4, intermediate_size=128,
                           use_cache=False, **words)  # fmt: skip
    return {
        "GPT-2, 12 layers": lambda: hf.GPT2LMHeadModel(gpt),
        "BERT, 24 layers": lambda: hf.BertModel(bert),
        "Llama, 16 layers": lambda: hf.LlamaForCausalLM(llama),
        "GPT-2 as released": lambda: hf.GPT2LMHeadModel(released),
    }


def seconds(action: Callable[[], object]) -> float:
    """Processor time of this process."""
    start = time.process_time()
    action()
    return time.process_time() - start


def figures(make: Callable[[], Any], P_world: distdl.Partition) -> Iterator[float]:
    """Seconds: without values, an ordinary call, distribute and the first call, a new shape."""
    with FakeTensorMode():
        model, x = make(), torch.zeros(2, TOKENS, dtype=torch.int64)
        model(x)
        yield min(seconds(lambda: model(x)) for _ in range(3))
    model, x = make(), torch.randint(WORDS, (2, TOKENS))
    yield min(seconds(lambda: model(x)) for _ in range(3))
    made: list[torch.nn.Module] = []
    P_x = P_world.create_cartesian_topology_partition([P_world.size, 1])
    begin = seconds(lambda: made.append(distdl.distribute(model, P_x)))
    first, later = (seconds(lambda: made[0](x)) for _ in range(2))
    yield begin + first - later
    longer = torch.cat([x, x], 1)
    first, later = (seconds(lambda: made[0](longer)) for _ in range(2))
    yield first - later


def main() -> None:
    """Print a row for each model. The first, which loads modules of torch, is not shown."""
    torch.set_num_threads(1)
    P_world = distdl.Partition(MPI.COMM_WORLD)
    every = models()
    [*figures(next(iter(every.values())), P_world)]
    names = "without values", "ordinary call", "distribute + first", "over without values", "new shape", "over first"
    if P_world.rank == 0:
        print(f"{'seconds on a processor':24}", *(f"{name:>20}" for name in names))
    for name, make in every.items():
        torch.manual_seed(0)
        fake, ordinary, first, new = figures(make, P_world)
        if P_world.rank == 0:
            row = fake, ordinary, first, first / fake, new, new / first
            print(f"{name:24}", *(f"{figure:20.3f}" for figure in row), flush=True)


if __name__ == "__main__":
    main()
