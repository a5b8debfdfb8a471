"""Calls of what moves no data. Expected values are worked out by hand."""

import numpy as np
import torch

import distdl
from support.ranks import job


def buffers(P_world):
    from distdl.backends.mpi.buffer import MPIBufferManager, MPIExpandableBuffer

    buffer = MPIExpandableBuffer(np.float32, 2)
    buffer.expand(6)
    view = buffer.allocate_view([2, 3])
    view[:] = 3
    assert (view.shape, view.dtype) == ((2, 3), np.float32)
    assert buffer.get_view([6]).tolist() == [3.0] * 6
    requested = MPIBufferManager().request_buffers(2, np.float64)
    assert [one.dtype for one in requested] == [np.float64] * 2


def corrector(P_world):
    from distdl.functional.zero_volume_corrector import ZeroVolumeCorrectorFunction

    x = torch.empty(2, 0, requires_grad=True)
    ZeroVolumeCorrectorFunction.apply(x).backward()
    assert x.grad.shape == (2, 0)


def interpolate(P_world):
    from distdl.nn.interpolate import Interpolate

    x = torch.arange(24.0).view(1, 2, 12) ** 2
    for mode in ("nearest", "linear"):
        whole = torch.nn.functional.interpolate(x, 20, mode=mode)
        part = Interpolate([0, 0, 2], [1, 2, 10], [1, 2, 12], [0, 0, 6], [1, 2, 14], [1, 2, 20], mode=mode)
        assert torch.equal(part(x[..., 2:10]), whole[..., 6:14])
    whole = torch.nn.functional.interpolate(x, scale_factor=1.7, mode="nearest")
    part = Interpolate([0], [12], [12], [0], [20], [20], 1.7)
    assert torch.equal(part(x), whole)
    x = torch.arange(36.0).view(1, 1, 6, 6) ** 2
    whole = torch.nn.functional.interpolate(x, (11, 8), mode="bilinear", align_corners=True)
    part = Interpolate([0, 0], [6, 6], [6, 6], [0, 0], [11, 8], [11, 8], mode="linear", align_corners=True)
    assert torch.allclose(part(x), whole, rtol=1e-6)


def mixins(P_world):
    from distdl.nn.mixins.conv_mixin import ConvMixin
    from distdl.nn.mixins.halo_mixin import HaloMixin
    from distdl.nn.mixins.interpolate_mixin import InterpolateMixin
    from distdl.nn.mixins.pooling_mixin import PoolingMixin

    class Mine(distdl.nn.module.Module, HaloMixin, ConvMixin, PoolingMixin, InterpolateMixin):
        def forward(self, x):
            return 2 * x

    assert Mine()(torch.ones(1)) == 2


def module(P_world):
    class Mine(distdl.nn.module.Module):
        def _distdl_module_setup(self, input):
            self._input_tensor_structure = distdl.utilities.torch.TensorStructure(input[0])

        def _distdl_module_teardown(self, input):
            del self._input_tensor_structure

        def _distdl_input_changed(self, input):
            return self._input_tensor_structure != distdl.utilities.torch.TensorStructure(input[0])

        def forward(self, x):
            return x * x.shape[0]

    layer = Mine()
    assert layer(torch.ones(2)).tolist() == [2, 2]
    assert layer(torch.ones(3)).tolist() == [3, 3, 3]
    assert layer._distdl_backend.Partition is distdl.backends.mpi.partition.MPIPartition


def print_sequential(P_world):
    distdl.utilities.debug.print_sequential(P_world._comm, job.rank)


def dtypes(P_world):
    from distdl.utilities import dtype

    for mine in (torch.float32, torch.int64, torch.complex128, torch.bool):
        there = dtype.torch_to_numpy_dtype_dict[mine]
        assert torch.empty(1, dtype=mine).numpy().dtype == there
        assert dtype.numpy_to_torch_dtype_dict[there] == mine
        number = dtype.torch_to_intID_dtype_dict[mine]
        assert dtype.numpy_to_intID_dtype_dict[there] == number
        assert (dtype.intID_to_torch_dtype_dict[number], dtype.intID_to_numpy_dtype_dict[number]) == (mine, there)
    assert dtype.numpy_to_torch_dtype_dict[np.float32] == torch.float32


def index_tricks(P_world):
    from distdl.utilities.index_tricks import cartesian_index_c, cartesian_index_f

    assert cartesian_index_c([2, 3], 4) == (1, 1)
    assert cartesian_index_f([2, 3], 4) == (0, 2)


def misc(P_world):
    from distdl.utilities.misc import Bunch, DummyContext

    assert Bunch(a=1).a == 1
    with DummyContext():
        pass


def slicing(P_world):
    from distdl.utilities import slicing as s

    assert s.INDEX_DTYPE is np.int64
    assert (s.MIN_INT, s.MAX_INT) == (-(2**63), 2**63 - 1)
    # 7 over 3 workers: 3, 2, 2
    shape = ([3, 1], [1, 0], [7, 4])
    assert s.compute_subshape(*shape).tolist() == [2, 4]
    assert s.compute_start_index(*shape).tolist() == [3, 0]
    assert s.compute_stop_index(*shape).tolist() == [5, 4]
    assert s.compute_subshape_along_axis([3, 2], [1, 0], [7, 4], 0).tolist() == [2, 4]
    start, stop, volume = s.compute_intersection([0, 2], [4, 6], [1, 6], [3, 9])
    assert (start.tolist(), stop.tolist(), volume.tolist()) == ([1, 6], [3, 6], [2, 0])
    assert s.assemble_slices(np.array([1, 2]), [3, 4]) == (slice(1, 3), slice(2, 4))
    # The second of three blocks, 3 to 5, has of the first half, 0 to 4, its first element.
    assert s.compute_partition_intersection([3], [1], [2], [0], [7]) == (slice(0, 1),)
    assert s.compute_partition_intersection([3], [2], [2], [0], [7]) is None
    assert s.compute_nd_slice_shape((slice(1, 3), slice(2, 5))).tolist() == [2, 3]
    assert s.compute_nd_slice_volume((slice(1, 3), slice(2, 5))) == 6
    assert list(s.range_index([2, 2])) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert s.worker_layout([2, 3]).tolist() == [[0, 1, 2], [3, 4, 5]]
    row = s.assemble_index_filter([1, 2], [0])
    assert row == (1, slice(None))
    assert s.assemble_index_filter([1, 2], [0], invert=True) == (slice(None), 2)
    assert list(s.filtered_range_index([2, 3], row)) == [(1, 0), (1, 1), (1, 2)]
    assert list(s.filtered_range_index([2, 2], lambda index: sum(index) == 1)) == [(0, 1), (1, 0)]
    x = torch.rand(2, 3, 4)
    assert x.permute(s.get_rearrange_ordering(3, 1)).shape == (3, 2, 4)


def tensor_decomposition(P_world):
    from distdl.utilities import tensor_decomposition as d

    shapes = d.compute_subtensor_shapes_balanced(torch.empty(7), [3])
    assert shapes.tolist() == [[3], [2], [2]]
    assert d.compute_subtensor_start_indices(shapes).tolist() == [[0], [3], [5]]
    assert d.compute_subtensor_stop_indices(shapes).tolist() == [[3], [5], [7]]
    assert d.compute_subtensor_intersection_slice([3], [7], [0], [5]) == (slice(0, 2),)
    assert d.compute_subtensor_intersection_slice([3], [7], [0], [3]) is None


def structures(P_world):
    from distdl.utilities.torch import TensorStructure, distdl_padding_to_torch_padding, zero_volume_tensor

    x = torch.empty(2, 3, dtype=torch.float64, requires_grad=True)
    structure = TensorStructure()
    assert structure.shape is None
    structure.fill_from_tensor(x)
    assert (structure.shape, structure.dtype, structure.requires_grad) == (x.shape, x.dtype, True)
    assert structure == TensorStructure(x)
    structure.shape = [4, 3]
    assert structure != TensorStructure(x)
    assert distdl_padding_to_torch_padding([[1, 2], [3, 4]]) == (3, 4, 1, 2)
    y = zero_volume_tensor(4, torch.float64, True)
    assert (y.shape, y.dtype, y.requires_grad) == ((4, 0), torch.float64, True)


def config(P_world):
    from distdl import config as c

    assert distdl.backends.supported_backends
    assert {"sum", "max", "min"} <= set(distdl.backends.common.operation_map)
    assert all(isinstance(name, str) for name in (c.BACKEND_COMM_ENV, c.BACKEND_ARRAY_ENV))
    assert isinstance(c.PRE_HOOK_CHECK_INPUT_CHANGED_ENV, str)
    before = (c.get_default_comm(), c.get_default_array(), c.get_default_pre_hook_setting())
    c.set_backend(backend_comm="any", backend_array="other", check_input_changed=False)
    assert (c.get_default_comm(), c.get_default_array(), c.get_default_pre_hook_setting()) == ("any", "other", False)
    c.set_backend(*before)


CALLS = {
    **dict.fromkeys(("MPIExpandableBuffer", "MPIBufferManager"), buffers),
    "ZeroVolumeCorrectorFunction": corrector,
    "Interpolate": interpolate,
    **dict.fromkeys(("ConvMixin", "HaloMixin", "InterpolateMixin", "PoolingMixin"), mixins),
    "Module": module,
    "print_sequential": print_sequential,
    **{
        f"{one}_to_{other}_dtype_dict": dtypes
        for one in ("numpy", "torch", "intID")
        for other in ("numpy", "torch", "intID")
        if one != other
    },
    **dict.fromkeys(("cartesian_index_c", "cartesian_index_f"), index_tricks),
    **dict.fromkeys(("Bunch", "DummyContext"), misc),
    **dict.fromkeys(
        (
            "INDEX_DTYPE", "MAX_INT", "MIN_INT", "compute_subshape", "compute_start_index", "compute_stop_index",
            "compute_intersection", "assemble_slices", "compute_partition_intersection", "compute_nd_slice_volume",
            "compute_nd_slice_shape", "range_index", "worker_layout", "filtered_range_index", "assemble_index_filter",
            "compute_subshape_along_axis", "get_rearrange_ordering",
        ),
        slicing,
    ),
    **dict.fromkeys(
        (
            "compute_subtensor_shapes_balanced", "compute_subtensor_start_indices", "compute_subtensor_stop_indices",
            "compute_subtensor_intersection_slice",
        ),
        tensor_decomposition,
    ),
    **dict.fromkeys(("TensorStructure", "zero_volume_tensor", "distdl_padding_to_torch_padding"), structures),
    **dict.fromkeys(
        (
            "supported_backends", "operation_map", "BACKEND_COMM_ENV", "BACKEND_ARRAY_ENV",
            "PRE_HOOK_CHECK_INPUT_CHANGED_ENV", "get_default_comm", "get_default_array", "get_default_pre_hook_setting",
            "set_backend",
        ),
        config,
    ),
}  # fmt: skip
