"""Tables of dtypes: NumPy's, torch's, and numbers for both."""

import numpy as np
import torch

_NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
torch_to_numpy_dtype_dict = {getattr(torch, name): np.dtype(name) for name in _NAMES}
torch_to_intID_dtype_dict = {one: number for number, one in enumerate(torch_to_numpy_dtype_dict)}

# Dtypes of NumPy are known by their scalar types, such as np.float32, too.
numpy_to_torch_dtype_dict = {
    kind: one for one, there in torch_to_numpy_dtype_dict.items() for kind in (there, there.type)
}
numpy_to_intID_dtype_dict = {kind: torch_to_intID_dtype_dict[one] for kind, one in numpy_to_torch_dtype_dict.items()}
intID_to_torch_dtype_dict = {number: one for one, number in torch_to_intID_dtype_dict.items()}
intID_to_numpy_dtype_dict = {n: torch_to_numpy_dtype_dict[one] for one, n in torch_to_intID_dtype_dict.items()}
