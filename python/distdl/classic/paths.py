"""The import paths that programs written for DistDL know, and what they find there.

Each path lists names by the module of this package that has them. Where this library has the same name, programs get
ours as long as classic mode is off. A path that this library has, too, gives both.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from distdl.classic import mode
from distdl.process import legacy_paths

EVERYTHING = "*"
"""All public names of a module, those that it imports as well: programs rely on star imports."""

_HELPERS = {"structure": EVERYTHING}
_PARTITIONS = {"partition": "MPIPartition MPICartesianPartition"}


def _each(name: str) -> str:
    return " ".join(name.format(d) for d in (1, 2, 3))


def _both(form: str) -> str:
    return f"{_each(f'DistributedChannel{form}Conv{{}}d')} {_each(f'DistributedChannel{form}ConvTranspose{{}}d')}"


NN: dict[str, dict[str, str]] = {
    "all_gather": {"primitives": "AllGather"},
    "all_sum_reduce": {"primitives": "AllSumReduce"},
    "batchnorm": {"norm": "DistributedBatchNorm"},
    "broadcast": {"primitives": "Broadcast"},
    "conv": {"conv": f"DistributedConvSelector {_each('DistributedConv{}d')}"},
    "conv_channel": {"conv": f"DistributedChannelConvBase {_each('DistributedChannelConv{}d')}"},
    "conv_channel_ag": {"channel_forms": _both("AllGather")},
    "conv_channel_rs": {"channel_forms": _both("ReduceScatter")},
    "conv_feature": {
        "conv": f"DistributedFeatureConvBase {_each('DistributedFeatureConv{}d')}",
        "channel_forms": _each("DistributedFeatureConvTranspose{}d"),
    },
    "conv_general": {"conv": f"DistributedGeneralConvBase {_each('DistributedGeneralConv{}d')}"},
    "embedding": {"embedding": "DistributedEmbedding"},
    "embedding_zero": {"embedding": "DistributedEmbeddingZero"},
    "halo_exchange": {"primitives": "HaloExchange"},
    "init": {
        "init": "calculate_gain uniform_ normal_ trunc_normal_ constant_ ones_ zeros_ eye_ dirac_ xavier_uniform_ "
        "xavier_normal_ kaiming_uniform_ kaiming_normal_ uniform normal constant eye dirac xavier_uniform "
        "xavier_normal kaiming_uniform kaiming_normal"
    },
    "interpolate": {"interpolate": "Interpolate"},
    "layernorm": {"norm": "DistributedLayerNorm"},
    "layernorm_zero": {"norm": "DistributedLayerNormZero"},
    "linear": {"linear": "DistributedLinear"},
    "linear_ag": {"linear_forms": "DistributedLinearAllGather"},
    "linear_ag_expert": {"experts": "DistributedExpertAllGather"},
    "linear_ag_zero": {"linear_forms": "LinearAllGatherZeROFunc DistributedLinearAllGatherZero"},
    "linear_rs": {"linear_forms": "DistributedLinearReduceScatter"},
    "linear_rs_expert": {"experts": "DistributedExpertReduceScatter"},
    "linear_rs_zero": {"linear_forms": "LinearReduceScatterZeROFunc DistributedLinearReduceScatterZero"},
    "loss": {
        "loss": "DistributedLossBase DistributedL1Loss DistributedMSELoss DistributedPoissonNLLLoss DistributedBCELoss "
        "DistributedBCEWithLogitsLoss DistributedKLDivLoss"
    },
    "mixins.conv_mixin": {"mixins": "ConvMixin"},
    "mixins.halo_mixin": {"mixins": "HaloMixin"},
    "mixins.interpolate_mixin": {"mixins": "InterpolateMixin"},
    "mixins.pooling_mixin": {"mixins": "PoolingMixin"},
    "module": {"module": "Module"},
    "pooling": {"pooling": f"DistributedPoolBase {_each('DistributedAvgPool{}d')} {_each('DistributedMaxPool{}d')}"},
    "reduce_scatter": {"primitives": "ReduceScatter"},
    "repartition": {"primitives": "Repartition"},
    "rmsnorm_zero": {"norm": "DistributedRMSNormZero"},
    "sum_reduce": {"primitives": "SumReduce"},
    "transpose": {"primitives": "DistributedTranspose"},
    "upsampling": {"upsampling": "DistributedUpsample"},
}
PATHS: dict[str, dict[str, str]] = {
    "distdl": {"partition": "MPIPartition Partition", "structure": "TensorStructure zero_volume_tensor"},
    "distdl.backend": {},
    "distdl.backend.backend": {"partition": "MPIPartition MPICartesianPartition Partition"},
    "distdl.backends": {"config": "supported_backends"},
    "distdl.backends.backend": {"partition": "MPIPartition MPICartesianPartition Partition"},
    "distdl.backends.common": {"config": "operation_map"},
    "distdl.backends.common.partition": _PARTITIONS,
    "distdl.backends.common.tensor_decomposition": {"tensor_comm": "compute_subtensor_shapes_unbalanced"},
    "distdl.backends.mpi": {"partition": "MPIPartition MPICartesianPartition Partition"},
    "distdl.backends.mpi.buffer": {"buffer": "MPIExpandableBuffer MPIBufferManager"},
    "distdl.backends.mpi.partition": _PARTITIONS,
    "distdl.backends.mpi.tensor_comm": {"tensor_comm": "broadcast_tensor_structure assemble_global_tensor_structure"},
    "distdl.backends.mpi.tensor_decomposition": {"tensor_comm": "compute_subtensor_shapes_unbalanced"},
    "distdl.config": {
        "config": "BACKEND_COMM_ENV BACKEND_ARRAY_ENV PRE_HOOK_CHECK_INPUT_CHANGED_ENV get_default_comm "
        "get_default_array get_default_pre_hook_setting set_backend"
    },
    "distdl.functional": {"corrector": "ZeroVolumeCorrectorFunction"},
    "distdl.functional.zero_volume_corrector": {"corrector": "ZeroVolumeCorrectorFunction"},
    "distdl.nn.mixins": {},
    **{f"distdl.nn.{path}": listed for path, listed in NN.items()},
    "distdl.utilities": {},
    "distdl.utilities.debug": {"misc": "print_sequential"},
    "distdl.utilities.dtype": {"dtype": EVERYTHING},
    "distdl.utilities.index_tricks": {"misc": "cartesian_index_c cartesian_index_f"},
    "distdl.utilities.misc": {"misc": "Bunch DummyContext"},
    # Star imports of any of them bring the helpers of all of them.
    **dict.fromkeys((f"distdl.utilities.{name}" for name in ("slicing", "tensor_decomposition", "torch")), _HELPERS),
}


def _names_of_nn() -> dict[str, str]:
    """All layers and primitives, by source."""
    together: dict[str, str] = {}
    for listed in NN.values():
        for source, names in listed.items():
            if source != "init":
                together[source] = f"{together.get(source, '')} {names}".strip()
    return together


PATHS["distdl.nn"] = _names_of_nn()


def contents(path: str) -> dict[str, object]:
    """The values that a program finds at a path, by name."""
    values: dict[str, object] = {}
    for source, names in PATHS.get(path, {}).items():
        if names == EVERYTHING:
            everything = vars(legacy_paths.module(source))
            names = " ".join(name for name in everything if not name.startswith("_") and name != "annotations")
        for name in names.split():
            values[name] = _meaning(source, name)
    return values


def _meaning(source: str, name: str) -> object:
    """Ours, unless classic mode is on or there is none."""
    if not mode.is_on():
        root = sys.modules[__name__.partition(".")[0]]
        for owner in (root, root.nn, root.nn.init if source == "init" else root):
            if name in vars(owner):
                return vars(owner)[name]
    return getattr(legacy_paths.module(source), name)


class PathLoader(Loader):
    """Fills the module of a path."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Python makes it."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Names of distdl, as programs written for DistDL know them."
        module.__dict__["__getattr__"] = functools.partial(attribute_of, module.__name__)
        module.__dict__.update(contents(module.__name__))


def spec_of(path: str) -> ModuleSpec | None:
    """How to import a path; None if programs know of no such path."""
    return ModuleSpec(path, PathLoader(), is_package=True) if path in PATHS else None


def attribute_of(owner: str, name: str) -> object:
    """A name that programs know in a module of ours, or a path below it.

    Raises:
        AttributeError: if they know none.
    """
    if f"{owner}.{name}" in PATHS:
        return importlib.import_module(f"{owner}.{name}")
    for source, names in PATHS.get(owner, {}).items():
        if name in names.split():
            return _meaning(source, name)
    raise AttributeError(f"module {owner!r} has no attribute {name!r}")
