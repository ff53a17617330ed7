"""Device memory that can be released and restored at the same addresses, through CUDA's virtual memory calls.

A captured graph contains addresses. Memory of torch's allocator cannot be reused while a graph may need it again. This
memory can: `release` returns the physical memory to the device and keeps the addresses; `restore` puts new memory
behind them. The contents are lost.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor


class DeviceMemoryError(RuntimeError):
    """A CUDA driver call failed. The message has its name and code."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with CUDA error {code}")
        self.is_out_of_memory = code == 2


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_DEVICE, _PINNED, _READ_WRITE = 1, 1, 3


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        raise DeviceMemoryError(name, code)


class _Bytes:
    """The interface through which torch uses foreign memory as a tensor."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


class ReleasableMemory:
    """Tensors whose memory is released and restored together. The caller must not use them in between."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.current_stream(device)  # creates the CUDA context
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._properties = _Properties(type=_PINNED, location=_Location(_DEVICE, self._index))
        granularity = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(self._properties), 0)
        self._granularity = granularity.value
        self._places: list[tuple[int, int]] = []
        """(address, bytes) of each tensor."""
        self._handles: list[ctypes.c_ulonglong] = []
        self.is_held = True

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self._places)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized tensor."""
        wanted = math.prod(shape) * dtype.itemsize
        size = max(1, -(-wanted // self._granularity)) * self._granularity
        address = ctypes.c_ulonglong()
        _call(
            "cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0),
            ctypes.c_ulonglong(0), ctypes.c_ulonglong(0),
        )  # fmt: skip
        self._places.append((address.value, size))
        self._handles.append(self._put_behind(address.value, size))
        flat = torch.as_tensor(_Bytes(address.value, wanted), device=f"cuda:{self._index}")
        return flat.view(dtype).view(shape)

    def release(self) -> None:
        """Release the memory once all work on it has ended. Its contents are lost."""
        if not self.is_held:
            return
        torch.cuda.synchronize(self._index)
        for (address, size), handle in zip(self._places, self._handles, strict=False):
            _call("cuMemUnmap", ctypes.c_ulonglong(address), ctypes.c_size_t(size))
            _call("cuMemRelease", handle)
        self._handles = []
        self.is_held = False

    def restore(self) -> None:
        """Allocate memory again behind the same addresses."""
        if self.is_held:
            return
        self.is_held = True
        try:
            for address, size in self._places:
                self._handles.append(self._put_behind(address, size))
        except DeviceMemoryError:
            self.release()
            raise

    def _put_behind(self, address: int, size: int) -> ctypes.c_ulonglong:
        handle = ctypes.c_ulonglong()
        arguments = (ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(self._properties), ctypes.c_ulonglong(0))
        try:
            _call("cuMemCreate", *arguments)
        except DeviceMemoryError as error:
            if not error.is_out_of_memory:
                raise
            torch.cuda.empty_cache()  # torch may cache memory that it no longer uses
            _call("cuMemCreate", *arguments)
        whole = (ctypes.c_ulonglong(address), ctypes.c_size_t(size))
        _call("cuMemMap", *whole, ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        access = _Access(_Location(_DEVICE, self._index), _READ_WRITE)
        _call("cuMemSetAccess", *whole, ctypes.byref(access), ctypes.c_size_t(1))
        return handle

    def __del__(self) -> None:
        if torch is None or not torch.cuda.is_initialized():  # the interpreter is shutting down
            return
        self.release()
        for address, size in self._places:
            _call("cuMemAddressFree", ctypes.c_ulonglong(address), ctypes.c_size_t(size))
