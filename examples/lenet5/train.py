"""Train LeNet-5 on handwritten digits over 1, 2 or 4 ranks, and compare with the sequential LeNet-5.

    mpiexec -n 4 python -m mpi4py examples/lenet5/train.py

The network is the model-parallel LeNet-5 of R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model
Parallelism in Deep Learning" (2020): partitioned in space up to the second pooling, then in features.
"""

import argparse
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import digits
import torch
from digits import Digits
from model import GRIDS, distributed_lenet5, sequential_lenet5
from mpi4py import MPI

import distdl

State = dict[str, torch.Tensor]


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="Train LeNet-5 over 1, 2 or 4 ranks.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--lr", type=float, default=0.003, help="learning rate of Adam")
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order of the batches")
    output = Path(__file__).resolve().parents[2] / "build" / "lenet5"
    parser.add_argument("--output", type=Path, default=output, help="folder of the results (default: build/lenet5)")
    parser.add_argument("--no-sequential", action="store_true", help="leave out the comparison")
    chosen = parser.parse_args()
    if chosen.epochs < 1 or chosen.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return chosen


@dataclass
class Run:
    """The results of a training; tensors and accuracies are on rank 0 only."""

    losses: list[float] = field(default_factory=list)  # of each step
    steps_per_epoch: int = 0
    seconds: float = 0.0
    first_gradients: State = field(default_factory=dict)
    weights: State = field(default_factory=dict)
    training_accuracy: float | None = None
    held_out_accuracy: float | None = None

    def last_epoch_loss(self) -> float:
        """The mean over the steps of the last epoch so far."""
        return sum(self.losses[-self.steps_per_epoch :]) / self.steps_per_epoch


def gradients(model: torch.nn.Module) -> State:
    """Whole gradients by name, on rank 0. They are gathered in place of the weights, which have the same layouts.

    Collective.
    """
    weights = {parameter: parameter.data for parameter in model.parameters()}
    for parameter in weights:
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    gathered = distdl.sequential_state_dict(model)
    for parameter, weight in weights.items():
        parameter.data = weight
    return gathered


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: Digits) -> float | None:
    """The share of digits that the model recognises, on rank 0. Collective."""
    logits = model(data.images)
    return (logits.argmax(1) == data.labels).double().mean().item() if logits.numel() else None


def train(
    name: str, model: torch.nn.Module, criterion: torch.nn.Module, data: tuple[Digits, Digits], args: argparse.Namespace
) -> Run:
    """Train a model: the same loop for the distributed one, on all ranks, and the sequential one, on rank 0 alone."""
    training, held_out = data
    has_data = training.images.numel() > 0  # so this is rank 0, which reports
    run = Run(steps_per_epoch=math.ceil(len(training) / args.batch_size))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    shuffle = torch.Generator().manual_seed(args.seed)  # the same on all ranks
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        for images, labels in training.batches(args.batch_size, shuffle):
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()  # on every rank
            if not run.losses:
                run.first_gradients = gradients(model)
            optimizer.step()
            run.losses.append(loss.item())
            if has_data and sys.stdout.isatty():
                step = len(run.losses) - (epoch - 1) * run.steps_per_epoch
                print(
                    f"{name:<11}  epoch {epoch:2}/{args.epochs}  step {step}/{run.steps_per_epoch}",
                    end="\r",
                    flush=True,
                )
        seconds = time.perf_counter() - start
        run.seconds += seconds
        run.held_out_accuracy = accuracy(model, held_out)
        if has_data:
            print(
                f"{name:<11}  epoch {epoch:2}/{args.epochs}  loss {run.last_epoch_loss():.6f}  "
                f"held-out accuracy {run.held_out_accuracy:.2%}  {seconds:.1f} s",
                flush=True,
            )
    run.training_accuracy = accuracy(model, training)
    run.weights = distdl.sequential_state_dict(model)
    return run


def main() -> None:
    """Train both models and report; every rank runs this."""
    args = options()
    dtype = getattr(torch, args.dtype)
    torch.set_num_threads(1)  # the ranks are the parallelism
    P_world = distdl.Partition(MPI.COMM_WORLD)
    if P_world.size not in GRIDS:
        raise SystemExit(f"lenet5: there are {P_world.size} ranks; it runs on 1, 2 or 4")

    first = P_world.rank == 0
    data = digits.load(dtype) if first else digits.absent(dtype)
    torch.manual_seed(args.seed)  # the same on all ranks: the global weights are those of the sequential model
    model = distributed_lenet5(P_world, dtype)
    criterion = distdl.nn.DistributedCrossEntropyLoss(P_world.create_cartesian_topology_partition([1, 1]))
    runs = {"distributed": train("distributed", model, criterion, data, args)}
    if not first:
        return

    if not args.no_sequential:
        torch.manual_seed(args.seed)
        runs["sequential"] = train("sequential", sequential_lenet5(dtype), torch.nn.CrossEntropyLoss(), data, args)

    import report  # here, because the other ranks draw no pictures

    report.write(runs, args, P_world.size)


if __name__ == "__main__":
    main()
