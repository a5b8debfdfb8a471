"""The ways to train a network on two ranks that alternatives.py times.

Three packages are optional, each without what it depends on, since that would bring another torch:

pip install --no-deps heat && pip install scipy torchvision
pip install --no-deps nvidia-physicsnemo && pip install cftime einops h5py hydra-core jaxtyping nvtx omegaconf onnx
pip install pandas requests s3fs "tensordict[zarr]" termcolor timm torchvision treelib warp-lang gitpython
pip install --no-deps --no-build-isolation mpi4torch

mpi4torch 0.1.3 is not compiled beside torch 2.13, where nodes of autograd are no shared pointers any more. In its only
source, write c10::make_intrusive<T>(...) for std::shared_ptr<T>(new T(...), torch::autograd::deleteNode), 14 times, and
c10::intrusive_ptr<T> grad_fn for std::shared_ptr<T> grad_fn, 11 times.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from contestants import ROOT
from convolution import alone
from mpi4py import MPI
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.parallel import DistributedDataParallel

import distdl


@dataclass(frozen=True)
class Way:
    """How a network is trained on this rank.

    Attributes:
        model: the network with the loss, on this rank.
        x: its input on this rank.
        gradients: the whole gradients, by name, on the first rank at least.
        setting: around each step.
        computes: False if another rank computes alone.
        optimizer: Adam, unless the way brings its own.
    """

    model: torch.nn.Module
    x: Tensor
    gradients: Callable[[torch.nn.Module], dict[str, Tensor]]
    setting: Callable[[], AbstractContextManager[object]] = nullcontext
    computes: bool = True
    optimizer: Any = None


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Adam, whose steps are small."""
    return torch.optim.Adam(model.parameters(), 1e-6, fused=True)


@contextmanager
def memory_of_torch(setting: Callable[[], AbstractContextManager[object]] = nullcontext) -> Iterator[None]:
    """The setting, in which tensors are in memory of torch's own allocator."""
    limit = distdl.memory.pool_limit()
    with ExitStack() as stack:
        stack.callback(distdl.memory.set_pool_limit, limit)
        distdl.memory.set_pool_limit(0)
        stack.enter_context(setting())
        yield


def own_block(x: Tensor, comm: MPI.Intracomm, dim: int = 0) -> Tensor:
    """The block of this rank of a tensor that is split along one dimension."""
    return x.chunk(comm.size, dim)[comm.rank].clone()


def plain(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradients of a model whose parameters are wholes."""
    return {name.removeprefix("module."): p.grad for name, p in model.named_parameters() if p.grad is not None}


def of_dtensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradients of a model whose parameters are torch's DTensors."""
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in plain(model).items()}


class Halo(torch.nn.Module):
    """A convolution of three points, whose input is in two blocks along its first dimension in space, by mpi4torch."""

    def __init__(self, conv: torch.nn.Module, comm: Any, functions: Any) -> None:
        super().__init__()
        self.conv, self.comm, self.functions = conv, comm, functions

    def forward(self, x: Tensor) -> Tensor:
        rank, peer, join = self.comm.rank, 1 - self.comm.rank, self.functions.JoinDummies
        handle = self.comm.Isend((x[:, :, :1] if rank else x[:, :, -1:]).contiguous(), peer, 0)
        arriving = self.comm.Recv(join(torch.empty_like(x[:, :, :1]), [handle.dummy]), peer, 0)
        sent = self.comm.Wait(self.functions.JoinDummiesHandle(handle, [arriving]))
        arriving, edge = join(arriving, [sent]), torch.zeros_like(x[:, :, :1])
        x = torch.cat([arriving, x, edge] if rank else [edge, x, arriving], 2)
        result: Tensor = torch.nn.functional.conv3d(x, self.conv.weight, self.conv.bias, padding=(0, 1, 1))
        return result


class Norm(torch.nn.Module):
    """A batch or group norm of blocks of the same size, without running statistics, by mpi4torch."""

    def __init__(self, norm: torch.nn.Module, comm: Any, functions: Any) -> None:
        super().__init__()
        self.norm, self.groups = norm, getattr(norm, "num_groups", None)
        self.mean = lambda x: comm.Allreduce(x, functions.MPI_SUM) / comm.size

    def forward(self, x: Tensor) -> Tensor:
        shape, dims = x.shape, (0, 2, 3, 4)
        if self.groups is not None:
            x, dims = x.unflatten(1, (self.groups, -1)), (2, 3, 4, 5)
        x = x - self.mean(x.mean(dims, keepdim=True))
        x = x * (self.mean(x.square().mean(dims, keepdim=True)) + self.norm.eps).rsqrt()
        weight, bias = (p.view(-1, 1, 1, 1) for p in (self.norm.weight, self.norm.bias))
        return x.view(shape) * weight + bias


def by_hand(model: torch.nn.Module, comm: Any, functions: Any) -> None:
    """The layers of a U-Net that need their neighbours, for volumes in two blocks. Raises TypeError for other ones."""
    local = torch.nn.ReLU, torch.nn.MaxPool3d, torch.nn.ConvTranspose3d
    for path, module in [*model.named_modules()]:
        parent, _, name = path.rpartition(".")
        if isinstance(module, torch.nn.Conv3d):
            if module.kernel_size == (3, 3, 3):
                setattr(model.get_submodule(parent), name, Halo(module, comm, functions))
        elif isinstance(module, torch.nn.BatchNorm3d | torch.nn.GroupNorm):
            setattr(model.get_submodule(parent), name, Norm(module, comm, functions))
        elif not [*module.children()] and not isinstance(module, local):
            raise TypeError(f"nobody has written {type(module).__name__} by hand")


def optional(name: str) -> Any:
    """A package. What its torchvision misses beside another build of torch is defined by zoo."""
    importlib.import_module("zoo")
    return importlib.import_module(name)


def others(dim: int, comm: MPI.Intracomm) -> dict[str, Callable[[torch.nn.Module, Tensor], Way]]:
    """The ways of packages beside torch."""

    def heat(model: torch.nn.Module, x: Tensor) -> Way:
        package = optional("heat")
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer = package.optim.DataParallelOptimizer(adam(model))
        parallel = package.nn.DataParallel(model, package.MPICommunication(comm), optimizer)
        model.load_state_dict(state)  # it has drawn all parameters anew

        def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
            model.eval()  # waits for them
            model.train()
            return plain(model)

        return Way(parallel, own_block(x, comm), gradients, memory_of_torch, optimizer=optimizer)

    def shard_tensor(dim: int, model: torch.nn.Module, x: Tensor) -> Way:
        package = optional("physicsnemo.domain_parallel")
        package.register_custom_ops()  # which it does itself where there are GPUs
        mesh = init_device_mesh("cpu", (comm.size,))
        block = package.ShardTensor.from_local(
            own_block(x, comm, dim), mesh, (Shard(dim),),
            sharding_shapes="chunk", global_shape=tuple(x.shape),  # else it asks for CUDA
        )  # fmt: skip
        return Way(model, block, of_dtensors, memory_of_torch)

    def mpi4torch(splits: int, model: torch.nn.Module, x: Tensor) -> Way:
        package = optional("mpi4torch")
        world = package.comm_from_mpi4py(comm)
        names = {parameter: name for name, parameter in model.named_parameters()}
        if splits:
            by_hand(model, world, package)

        def mean(parameter: Tensor) -> None:
            real = torch.view_as_real(parameter.grad) if parameter.is_complex() else parameter.grad
            real.copy_(world.Allreduce(real, package.MPI_SUM) / world.size)

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(mean)
        block = own_block(x, comm, splits)
        return Way(model, block, lambda model: {names[p]: p.grad for p in model.parameters()}, memory_of_torch)

    return {
        "HeAT, batch in two": heat,
        "ShardTensor, space or sequence in two": partial(shard_tensor, dim),
        "ShardTensor, batch in two": partial(shard_tensor, 0),
        "mpi4torch by hand, batch in two": partial(mpi4torch, 0),
        "mpi4torch by hand, space in two": partial(mpi4torch, dim),
    }


def ways(dim: int, comm: MPI.Intracomm, layout: str) -> dict[str, Callable[[torch.nn.Module, Tensor], Way]]:
    """What makes each way, of a copy of the network and the whole input, whose dimension of space or sequence it is."""
    P = distdl.Partition(comm)

    def sequential(threads: int, model: torch.nn.Module, x: Tensor) -> Way:
        setting = partial(memory_of_torch, partial(alone, comm, threads))
        return Way(model, x, plain, setting, computes=comm.rank == ROOT)

    def ours(dim: int, model: torch.nn.Module, x: Tensor) -> Way:
        P_x = P.create_cartesian_topology_partition([comm.size if d == dim else 1 for d in range(x.dim())])
        block = own_block(x, comm, dim)
        with distdl.parameter_layout(layout):
            return Way(distdl.distribute(model, P_x), block, distdl.sequential_gradients)

    def ddp(model: torch.nn.Module, x: Tensor) -> Way:
        return Way(DistributedDataParallel(model), own_block(x, comm), plain, memory_of_torch)

    def fsdp(model: torch.nn.Module, x: Tensor) -> Way:
        fully_shard(model, mesh=init_device_mesh("cpu", (comm.size,)))
        return Way(model, own_block(x, comm), of_dtensors, memory_of_torch)

    def half(model: torch.nn.Module, x: Tensor) -> Way:
        return Way(model, own_block(x, comm), lambda model: {})

    def dtensor(model: torch.nn.Module, x: Tensor) -> Way:
        mesh = init_device_mesh("cpu", (comm.size,))
        block = distribute_tensor(x, mesh, [Shard(dim)])
        setting = partial(memory_of_torch, implicit_replication)
        return Way(distribute_module(model, mesh), block, of_dtensors, setting)

    return {
        "torch.nn, 1 thread": partial(sequential, 1),
        "torch.nn, 2 threads": partial(sequential, 2),
        "distdl, space or sequence in two": partial(ours, dim),
        "distdl, batch in two": partial(ours, 0),
        "DTensor, space or sequence in two": dtensor,
        "DDP, batch in two": ddp,
        "FSDP2, batch in two": fsdp,
        **others(dim, comm),
        "half of the batch each, no messages": half,
    }
