"""A device that stands in for a GPU: its tensors lie in the CPU's memory and are kept apart.

They say that they are on ``cuda:0``. As on a GPU, an operation on tensors of both devices is
refused (but for single numbers), and so is an array made of a tensor that was not copied to the
CPU first. What comes back to the CPU is counted: each time waits for all that a GPU was asked for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

THERE, CPU = torch.device("cuda", 0), torch.device("cpu")
_ATEN = torch.ops.aten


class Apart(torch.Tensor):
    """A tensor on the device.

    Attributes:
        held: The same numbers on the CPU.
        leaving: Whether a copy to the CPU is asked for. Else torch asks for one by itself, since it
            takes such tensors for the CPU's, and the copy stays on the device.
    """

    held: torch.Tensor
    leaving: ClassVar[bool] = False

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Apart:
        # For torch itself on the CPU: autograd has a thread for each device that it knows of,
        # and starts none for one that comes later.
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=CPU,
        )
        tensor.held = held
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        return THERE

    def cpu(self) -> torch.Tensor:
        Apart.leaving = True
        try:
            return _ATEN._to_copy.default(self, device=CPU)
        finally:
            Apart.leaving = False

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def to(self, *args: Any, copy: bool = False, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], torch.Tensor):
            device, dtype = args[0].device, args[0].dtype
        else:
            device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        tensor = self.clone() if copy else self
        if device == CPU:
            tensor = tensor.cpu()
        return tensor if dtype is None else torch.Tensor.to(tensor, dtype)


class _NoGradients:
    """What stands for :class:`torch.inference_mode`."""

    def __init__(self, mode: bool = True) -> None:
        self.within: list[torch.no_grad] = []

    def __enter__(self) -> None:
        self.within.append(torch.no_grad())
        self.within[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self.within.pop().__exit__(*error)

    def clone(self) -> Any:
        return torch.inference_mode()


class Standing(TorchDispatchMode):
    """While it is entered, tensors can be made on the device.

    Attributes:
        back: How often numbers came back to the CPU, by operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.back: Counter[str] = Counter()
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Standing:
        self._patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        # Views of such tensors cannot be taken in inference mode.
        for name in ("__init__", "__enter__", "__exit__", "clone"):
            self._patch.setattr(torch.inference_mode, name, vars(_NoGradients)[name])
        torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor() looks for real kernels
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # as from CPU to CUDA
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        self._patch.undo()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, self.back)


def _run(func: Any, args: Any, kwargs: dict[str, Any], back: Counter[str] | None = None) -> Any:
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    any_apart = there = any(isinstance(tensor, Apart) for tensor in given)
    mixed = any_apart and any(not isinstance(tensor, Apart) and tensor.dim() for tensor in given)
    held_args, held_kwargs = tree_map(
        lambda leaf: leaf.held if isinstance(leaf, Apart) else leaf, (args, kwargs)
    )
    if func is _ATEN.copy_.default:
        there = isinstance(args[0], Apart)
    elif func is _ATEN._local_scalar_dense.default:
        there = False
    elif mixed:
        raise RuntimeError(f"{func}: tensors of the CPU and of the device in one operation")
    elif held_kwargs.get("device") is not None:
        there = held_kwargs["device"] == THERE or (any_apart and not Apart.leaving)
        held_kwargs["device"] = CPU
    if any_apart and not there and back is not None:
        back[str(func)] += 1
    out = func(*held_args, **held_kwargs)
    if not there:
        return out
    out = tree_map(lambda leaf: Apart(leaf) if isinstance(leaf, torch.Tensor) else leaf, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if any_apart else out
