"""What programs written for DistDL import and call: paths, names, arguments and defaults, and methods.

Names without arguments behind a class whose name ends with Base have the arguments of that class.
"""

ORIGINAL = {
    "distdl.backends.mpi.buffer": [
        "MPIExpandableBuffer(dtype, initial_capacity=0) .expand .allocate_view .get_view",
        "MPIBufferManager() .request_buffers",
    ],
    "distdl.backends.mpi.partition": [
        "MPIPartition(comm=MPI.COMM_NULL, group=MPI.GROUP_NULL, root=None) .deactivate .print_sequential "
        ".create_partition_inclusive .create_partition_union .create_cartesian_topology_partition "
        ".create_broadcast_partition_to .create_allreduction_partition .create_reduction_partition_to "
        ".broadcast_data .allgather_data .allreduce_data",
        "MPICartesianPartition(comm, group, root, shape) .deactivate .create_cartesian_subtopology_partition "
        ".cartesian_index .neighbor_ranks",
    ],
    "distdl.backends.mpi.tensor_comm": [
        "broadcast_tensor_structure(input_tensor_structure, P_send, P_recv)",
        "assemble_global_tensor_structure(local_tensor_structure, P_in, P_out=None)",
    ],
    "distdl.backends.mpi.tensor_decomposition": [
        "compute_subtensor_shapes_unbalanced(local_tensor_structure, P_in, P_out=None)",
    ],
    "distdl.functional.zero_volume_corrector": [
        "ZeroVolumeCorrectorFunction",
    ],
    "distdl.nn.all_sum_reduce": [
        "AllSumReduce(P_x, axes_reduce=None, axes_keep=None)",
    ],
    "distdl.nn.batchnorm": [
        "DistributedBatchNorm(P_x, num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)",
    ],
    "distdl.nn.broadcast": [
        "Broadcast(P_x, P_y, transpose_src=False, transpose_dest=False, preserve_batch=True)",
    ],
    "distdl.nn.conv": [
        "DistributedConvSelector",
        "DistributedConv1d",
        "DistributedConv2d",
        "DistributedConv3d",
    ],
    "distdl.nn.conv_channel": [
        "DistributedChannelConvBase(P_x, P_y, P_w, in_channels, out_channels, kernel_size, stride=1, "
        "padding=0, padding_mode='zeros', dilation=1, groups=1, bias=True, *args, **kwargs)",
        "DistributedChannelConv1d",
        "DistributedChannelConv2d",
        "DistributedChannelConv3d",
    ],
    "distdl.nn.conv_feature": [
        "DistributedFeatureConvBase(P_x, in_channels, out_channels, kernel_size, stride=1, padding=0, "
        "padding_mode='zeros', dilation=1, groups=1, bias=True, buffer_manager=None)",
        "DistributedFeatureConv1d",
        "DistributedFeatureConv2d",
        "DistributedFeatureConv3d",
    ],
    "distdl.nn.conv_general": [
        "DistributedGeneralConvBase(P_x, P_y, P_w, in_channels, out_channels, kernel_size, stride=1, "
        "padding=0, padding_mode='zeros', dilation=1, groups=1, bias=True, buffer_manager=None)",
        "DistributedGeneralConv1d",
        "DistributedGeneralConv2d",
        "DistributedGeneralConv3d",
    ],
    "distdl.nn.halo_exchange": [
        "HaloExchange(P_x, halo_shape, recv_buffer_shape, send_buffer_shape, buffer_manager=None)",
    ],
    "distdl.nn.interpolate": [
        "Interpolate(x_local_start, x_local_stop, x_global_shape, y_local_start, y_local_stop, "
        "y_global_shape, scale_factor=None, mode='nearest', align_corners=False)",
    ],
    "distdl.nn.linear": [
        "DistributedLinear(P_x, P_y, P_w, in_features, out_features, bias=True)",
    ],
    "distdl.nn.loss": [
        "DistributedLossBase(P_x, reduction='mean')",
        "DistributedL1Loss",
        "DistributedMSELoss",
        "DistributedPoissonNLLLoss",
        "DistributedBCELoss",
        "DistributedBCEWithLogitsLoss",
        "DistributedKLDivLoss",
    ],
    "distdl.nn.mixins.conv_mixin": [
        "ConvMixin",
    ],
    "distdl.nn.mixins.halo_mixin": [
        "HaloMixin",
    ],
    "distdl.nn.mixins.interpolate_mixin": [
        "InterpolateMixin",
    ],
    "distdl.nn.mixins.pooling_mixin": [
        "PoolingMixin",
    ],
    "distdl.nn.module": [
        "Module()",
    ],
    "distdl.nn.pooling": [
        "DistributedPoolBase(P_x, kernel_size, stride=1, padding=0, dilation=1, buffer_manager=None)",
        "DistributedAvgPool1d",
        "DistributedAvgPool2d",
        "DistributedAvgPool3d",
        "DistributedMaxPool1d",
        "DistributedMaxPool2d",
        "DistributedMaxPool3d",
    ],
    "distdl.nn.repartition": [
        "Repartition(P_x, P_y, preserve_batch=True, buffer_manager=None)",
    ],
    "distdl.nn.sum_reduce": [
        "SumReduce(P_x, P_y, transpose_src=False, transpose_dest=False, preserve_batch=True)",
    ],
    "distdl.nn.transpose": [
        "DistributedTranspose",
    ],
    "distdl.nn.upsampling": [
        "DistributedUpsample(P_x, buffer_manager=None, size=None, scale_factor=None, mode='linear', "
        "align_corners=False)",
    ],
    "distdl.utilities.debug": [
        "print_sequential(comm, val)",
    ],
    "distdl.utilities.dtype": [
        "numpy_to_torch_dtype_dict",
        "torch_to_numpy_dtype_dict",
        "numpy_to_intID_dtype_dict",
        "intID_to_numpy_dtype_dict",
        "torch_to_intID_dtype_dict",
        "intID_to_torch_dtype_dict",
    ],
    "distdl.utilities.index_tricks": [
        "cartesian_index_c(shape, index)",
        "cartesian_index_f(shape, index)",
    ],
    "distdl.utilities.misc": [
        "Bunch",
        "DummyContext",
    ],
    "distdl.utilities.slicing": [
        "INDEX_DTYPE",
        "MAX_INT",
        "MIN_INT",
        "compute_subshape(P_shape, index, shape)",
        "compute_start_index(P_shape, index, shape)",
        "compute_stop_index(P_shape, index, shape)",
        "compute_intersection(r0_start_index, r0_stop_index, r1_start_index, r1_stop_index)",
        "assemble_slices(start_index, stop_index)",
        "compute_partition_intersection(P_x_r_shape, P_x_r_index, P_x_s_shape, P_x_s_index, x_shape)",
        "compute_nd_slice_volume(slices)",
        "compute_nd_slice_shape(slices)",
        "range_index(shape)",
        "worker_layout(shape)",
        "filtered_range_index(shape, filter)",
        "assemble_index_filter(index, dims, invert=False)",
    ],
    "distdl.utilities.tensor_decomposition": [
        "compute_subtensor_shapes_balanced(global_tensor_structure, P_tensor_shape)",
        "compute_subtensor_start_indices(shapes)",
        "compute_subtensor_stop_indices(shapes)",
        "compute_subtensor_intersection_slice(x_start_index, x_stop_index, y_start_index, y_stop_index)",
    ],
    "distdl.utilities.torch": [
        "zero_volume_tensor(b=None, dtype=None, requires_grad=False, device=None)",
        "TensorStructure(tensor=None) .fill_from_tensor",
        "distdl_padding_to_torch_padding(pad)",
    ],
}
DESCENDANT = {
    "distdl.backends": [
        "supported_backends",
    ],
    "distdl.backends.common": [
        "operation_map",
    ],
    "distdl.backends.common.partition": [
        "MPIPartition(comm=MPI.COMM_NULL, group=MPI.GROUP_NULL, root=None, device=None, "
        "requested_device=None, initialize_backend_comm=False) .initialize_backend_comm .set_device "
        ".deactivate .print_sequential .create_partition_inclusive .create_partition_union "
        ".create_cartesian_topology_partition .create_broadcast_partition_to .create_allreduction_partition "
        ".create_reduction_partition_to .broadcast_data .allgather_data .allreduce_data",
        "MPICartesianPartition(comm, group, root, shape, device) .deactivate "
        ".create_cartesian_subtopology_partition .cartesian_index .neighbor_ranks",
    ],
    "distdl.backends.common.tensor_decomposition": [
        "compute_subtensor_shapes_unbalanced(local_tensor_structure, P_in, P_out=None)",
    ],
    "distdl.config": [
        "BACKEND_COMM_ENV",
        "BACKEND_ARRAY_ENV",
        "PRE_HOOK_CHECK_INPUT_CHANGED_ENV",
        "get_default_comm()",
        "get_default_array()",
        "get_default_pre_hook_setting()",
        "set_backend(backend_comm=None, backend_array=None, check_input_changed=None)",
    ],
    "distdl.nn.all_gather": [
        "AllGather(P_x, axes_all_gather=None, axes_keep=None)",
    ],
    "distdl.nn.conv_channel_ag": [
        "DistributedChannelAllGatherConv1d(P_x, in_channels, out_channels, kernel_size, stride=1, padding=0, "
        "dilation=1, groups=1, bias=True, padding_mode='zeros')",
        "DistributedChannelAllGatherConv2d(P_x, in_channels, out_channels, kernel_size, stride=1, padding=0, "
        "dilation=1, groups=1, bias=True, padding_mode='zeros')",
        "DistributedChannelAllGatherConv3d(P_x, in_channels, out_channels, kernel_size, stride=1, padding=0, "
        "dilation=1, groups=1, bias=True, padding_mode='zeros')",
        "DistributedChannelAllGatherConvTranspose1d(P_x, in_channels, out_channels, kernel_size, stride=1, "
        "padding=0, output_padding=0, groups=1, bias=True, dilation=1, padding_mode='zeros')",
        "DistributedChannelAllGatherConvTranspose2d(P_x, in_channels, out_channels, kernel_size, stride=1, "
        "padding=0, output_padding=0, groups=1, bias=True, dilation=1, padding_mode='zeros')",
        "DistributedChannelAllGatherConvTranspose3d(P_x, in_channels, out_channels, kernel_size, stride=1, "
        "padding=0, output_padding=0, groups=1, bias=True, dilation=1, padding_mode='zeros')",
    ],
    "distdl.nn.conv_channel_rs": [
        "DistributedChannelReduceScatterConv1d(P_x, in_channels, out_channels, kernel_size, stride=1, "
        "padding=0, dilation=1, groups=1, bias=True, padding_mode='zeros')",
        "DistributedChannelReduceScatterConv2d(P_x, in_channels, out_channels, kernel_size, stride=1, "
        "padding=0, dilation=1, groups=1, bias=True, padding_mode='zeros')",
        "DistributedChannelReduceScatterConv3d(P_x, in_channels, out_channels, kernel_size, stride=1, "
        "padding=0, dilation=1, groups=1, bias=True, padding_mode='zeros')",
        "DistributedChannelReduceScatterConvTranspose1d(P_x, in_channels, out_channels, kernel_size, "
        "stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1, padding_mode='zeros')",
        "DistributedChannelReduceScatterConvTranspose2d(P_x, in_channels, out_channels, kernel_size, "
        "stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1, padding_mode='zeros')",
        "DistributedChannelReduceScatterConvTranspose3d(P_x, in_channels, out_channels, kernel_size, "
        "stride=1, padding=0, output_padding=0, groups=1, bias=True, dilation=1, padding_mode='zeros')",
    ],
    "distdl.nn.conv_feature": [
        "DistributedFeatureConvTranspose1d",
        "DistributedFeatureConvTranspose2d",
        "DistributedFeatureConvTranspose3d",
    ],
    "distdl.nn.embedding": [
        "DistributedEmbedding(P_x, num_embeddings, embedding_dim, padding_idx=None, max_norm=None, "
        "norm_type=2.0, scale_grad_by_freq=False, sparse=False, _weight=None, _freeze=False)",
    ],
    "distdl.nn.embedding_zero": [
        "DistributedEmbeddingZero(P_x, num_embeddings, embedding_dim, padding_idx=None, max_norm=None, "
        "norm_type=2.0, scale_grad_by_freq=False, sparse=False, _weight=None, _freeze=False)",
    ],
    "distdl.nn.init": [
        "calculate_gain(nonlinearity, param=None)",
        "uniform_(tensor, a=0.0, b=1.0)",
        "normal_(tensor, mean=0.0, std=1.0)",
        "trunc_normal_(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0)",
        "constant_(tensor, val)",
        "ones_(tensor)",
        "zeros_(tensor)",
        "eye_(tensor)",
        "dirac_(tensor, groups=1)",
        "xavier_uniform_(P_tensor, tensor, gain=1.0)",
        "xavier_normal_(P_tensor, tensor, gain=1.0)",
        "kaiming_uniform_(P_tensor, tensor, a=0, mode='fan_in', nonlinearity='leaky_relu')",
        "kaiming_normal_(P_tensor, tensor, a=0, mode='fan_in', nonlinearity='leaky_relu')",
        "uniform",
        "normal",
        "constant",
        "eye",
        "dirac",
        "xavier_uniform",
        "xavier_normal",
        "kaiming_uniform",
        "kaiming_normal",
    ],
    "distdl.nn.layernorm": [
        "DistributedLayerNorm(P_x, normalized_shape, elementwise_affine=True, eps=1e-05)",
    ],
    "distdl.nn.layernorm_zero": [
        "DistributedLayerNormZero(P_x, normalized_shape, elementwise_affine=True, eps=1e-05)",
    ],
    "distdl.nn.linear_ag": [
        "DistributedLinearAllGather(P_y, in_features, out_features, bias=True, P_x=None, P_store_weight=None,"
        " P_apply_weight=None, num_heads=None, num_heads_kv=None, num_vars=3, geglu=False)",
    ],
    "distdl.nn.linear_ag_expert": [
        "DistributedExpertAllGather(P_expert_emb, num_experts, in_features, out_features, bias=True, "
        "P_weight=None, P_bias=None, P_expert_seq=None, geglu=False)",
    ],
    "distdl.nn.linear_ag_zero": [
        "LinearAllGatherZeROFunc .setup_context .backward",
        "DistributedLinearAllGatherZero(P_y, in_features, out_features, bias=True, P_x=None, "
        "P_store_bias=None, P_weight=None, num_heads=None, num_heads_kv=None, num_vars=3, geglu=False)",
    ],
    "distdl.nn.linear_rs": [
        "DistributedLinearReduceScatter(P_x, in_features, out_features, bias=True, P_y=None, P_weight=None, "
        "P_store_bias=None, P_apply_bias=None)",
    ],
    "distdl.nn.linear_rs_expert": [
        "DistributedExpertReduceScatter(P_expert_emb, num_experts, in_features, out_features, bias=True, "
        "P_store_bias=None, P_apply_bias=None, P_weight=None, P_expert_seq=None)",
    ],
    "distdl.nn.linear_rs_zero": [
        "LinearReduceScatterZeROFunc .setup_context .backward",
        "DistributedLinearReduceScatterZero(P_x, in_features, out_features, bias=True, P_y=None, P_bias=None)",
    ],
    "distdl.nn.reduce_scatter": [
        "ReduceScatter(P_x, axes_reduce_scatter=None, axes_keep=None)",
    ],
    "distdl.nn.rmsnorm_zero": [
        "DistributedRMSNormZero(P_x, normalized_shape, elementwise_affine=True, bias=False, eps=1e-05)",
    ],
    "distdl.utilities.slicing": [
        "compute_subshape_along_axis(P_shape, index, shape, axis)",
        "get_rearrange_ordering(num_dims, axis)",
    ],
    "distdl.utilities.torch": [
        "zero_volume_tensor(b=None, requires_grad=False)",
    ],
}
