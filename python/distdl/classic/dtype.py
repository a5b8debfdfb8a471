"""Tables of dtypes: NumPy's, torch's, and numbers for both."""

import numpy as np
import torch

_NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
torch_to_numpy_dtype_dict = {getattr(torch, name): np.dtype(name) for name in _NAMES}
torch_to_intID_dtype_dict = {dtype: number for number, dtype in enumerate(torch_to_numpy_dtype_dict)}

# Dtypes of NumPy are known by their scalar types, such as np.float32, too.
numpy_to_torch_dtype_dict = {
    kind: dtype for dtype, there in torch_to_numpy_dtype_dict.items() for kind in (there, there.type)
}
numpy_to_intID_dtype_dict = {
    kind: torch_to_intID_dtype_dict[dtype] for kind, dtype in numpy_to_torch_dtype_dict.items()
}
intID_to_torch_dtype_dict = {number: dtype for dtype, number in torch_to_intID_dtype_dict.items()}
intID_to_numpy_dtype_dict = {n: torch_to_numpy_dtype_dict[dtype] for dtype, n in torch_to_intID_dtype_dict.items()}
