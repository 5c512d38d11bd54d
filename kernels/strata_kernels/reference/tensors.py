"""From the arrays that operations take to torch tensors over the same memory, without copying."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def tensor(array: Any) -> Tensor:
    """The array's memory as a tensor, which keeps it alive; a tensor is itself. Numpy's u16 holds bf16."""
    if isinstance(array, Tensor):
        return array
    if array.flags.writeable:
        found = torch.from_numpy(array)
    else:
        with warnings.catch_warnings():
            # torch warns that writing would be undefined; nothing here writes into mapped weights
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            found = torch.from_numpy(array)
    return found.view(torch.bfloat16) if array.dtype == np.uint16 else found
