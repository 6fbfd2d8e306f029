"""Finds libheadrace.so and tells ctypes its functions. One Python module per C header."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
from collections.abc import Iterable
from pathlib import Path

from headrace import errors

UNSET = 0xFFFFFFFF


class ErrorText(ctypes.Structure):
    """hr_error."""

    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 512)]


class Options(ctypes.Structure):
    """hr_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("socket_path", ctypes.c_char * 108),
        ("job", ctypes.c_char * 64),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_uint32),
        ("call_timeout_ms", ctypes.c_uint32),
        ("spin_us", ctypes.c_uint32),
        ("program", ctypes.c_char * 64),
        ("rendezvous", ctypes.c_char * 256),
        ("architecture", ctypes.c_char * 32),
        ("reconnect_s", ctypes.c_uint32),
        ("shrink_min_world", ctypes.c_uint32),
        ("shrink_grace_ms", ctypes.c_uint32),
        ("role", ctypes.c_uint32),
        ("sends_class", ctypes.c_char * 8),
        ("slow_bound_s", ctypes.c_uint32),
        ("slow_evict", ctypes.c_uint32),
    ]


class TensorSpec(ctypes.Structure):
    """hr_tensor_spec."""

    _fields_ = [
        ("segment", ctypes.c_void_p),
        ("offset", ctypes.c_size_t),
        ("count", ctypes.c_uint64),
        ("dtype", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("order", ctypes.c_uint32),
    ]


class ElementRange(ctypes.Structure):
    """hr_range."""

    _fields_ = [("offset", ctypes.c_uint64), ("count", ctypes.c_uint64)]


class Allocation(ctypes.Structure):
    """hr_allocation."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("number", ctypes.c_uint64),
        ("device", ctypes.c_int),
    ]


class LayoutOptions(ctypes.Structure):
    """hr_layout_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("reduction", ctypes.c_int),
        ("policy", ctypes.c_char * 32),
        ("codec", ctypes.c_char * 64),
        ("codecs", ctypes.POINTER(ctypes.c_char_p)),
        ("compress_after", ctypes.c_uint64),
        ("residuals", ctypes.c_uint64),
        ("adaptive", ctypes.c_int),
        ("rows", ctypes.POINTER(ctypes.c_uint64)),
        ("residuals_segment", ctypes.c_void_p),
        ("factors_rank", ctypes.c_uint32),
    ]


class Counters(ctypes.Structure):
    """hr_counters."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("posted", ctypes.c_uint64),
        ("waits", ctypes.c_uint64),
        ("waited_ns", ctypes.c_uint64),
        ("doorbells", ctypes.c_uint64),
        ("full_waits", ctypes.c_uint64),
        ("arrays", ctypes.c_uint64),
        ("copied_bytes", ctypes.c_uint64),
        ("staging_bytes", ctypes.c_uint64),
    ]


_HANDLE = ctypes.c_void_p
_STREAM = ctypes.c_void_p
_HANDLE_OUT = ctypes.POINTER(ctypes.c_void_p)
_ERROR = ctypes.POINTER(ErrorText)
_RANGE = ctypes.POINTER(ElementRange)
_OPERATION = ctypes.c_uint64
_OPERATION_OUT = ctypes.POINTER(ctypes.c_uint64)
_ARRAY = (_HANDLE, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
_POSTED = (_OPERATION_OUT, _ERROR)
_WHOLE = (_HANDLE, ctypes.c_uint64, ctypes.c_int)
_PIECES = (ctypes.c_void_p, ctypes.c_size_t) * 2  # as packed() makes them
_ARRAYS = ctypes.c_void_p  # likewise
_OTHER = (ctypes.c_uint32, ctypes.c_uint64)  # rank and tag

# name -> (result, arguments)
_FUNCTIONS: dict[str, tuple] = {
    "hr_version": (ctypes.c_char_p, ()),
    "hr_status_name": (ctypes.c_char_p, (ctypes.c_int,)),
    "hr_options_init_sized": (
        ctypes.c_int,
        (ctypes.POINTER(Options), ctypes.c_size_t, _ERROR),
    ),
    "hr_open": (ctypes.c_int, (ctypes.POINTER(Options), _HANDLE_OUT, _ERROR)),
    "hr_close": (ctypes.c_int, (_HANDLE, _ERROR)),
    "hr_session_reconnect": (ctypes.c_int, (_HANDLE, ctypes.c_int64, _ERROR)),
    "hr_session_members_wait": (ctypes.c_int, (_HANDLE,)),
    "hr_session_role": (ctypes.c_uint32, (_HANDLE,)),
    "hr_session_count_waits": (ctypes.c_int, (_HANDLE, _HANDLE, _ERROR)),
    "hr_session_rendezvous": (ctypes.c_char_p, (_HANDLE,)),
    "hr_session_compress": (ctypes.c_int, (_HANDLE, ctypes.c_char_p, _ERROR)),
    "hr_session_shrink": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint32, _ERROR),
    ),
    "hr_session_rank": (ctypes.c_uint32, (_HANDLE,)),
    "hr_session_members": (
        ctypes.c_uint32,
        (_HANDLE, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32),
    ),
    "hr_session_service_pid": (ctypes.c_int32, (_HANDLE,)),
    "hr_segment_create": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_size_t, _HANDLE_OUT, _ERROR),
    ),
    "hr_segment_create_on_device": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_size_t, ctypes.c_int, _HANDLE_OUT, _ERROR),
    ),
    "hr_segment_share_device": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_void_p, ctypes.c_size_t, _HANDLE_OUT, _ERROR),
    ),
    "hr_device_allocation": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_void_p, ctypes.POINTER(Allocation), _ERROR),
    ),
    "hr_segment_address": (ctypes.c_void_p, (_HANDLE,)),
    "hr_segment_device": (ctypes.c_int, (_HANDLE,)),
    "hr_segment_keep": (_HANDLE, (_HANDLE,)),
    "hr_memory_free": (None, (_HANDLE,)),
    "hr_segment_size": (ctypes.c_size_t, (_HANDLE,)),
    "hr_segment_descriptor": (ctypes.c_int, (_HANDLE,)),
    "hr_segment_release": (ctypes.c_int, (_HANDLE, _HANDLE, _ERROR)),
    "hr_tensors_register": (
        ctypes.c_int,
        (_HANDLE, ctypes.POINTER(TensorSpec), ctypes.c_size_t, _HANDLE_OUT, _ERROR),
    ),
    "hr_tensors_release": (
        ctypes.c_int,
        (_HANDLE, _HANDLE_OUT, ctypes.c_size_t, _ERROR),
    ),
    "hr_all_reduce": (ctypes.c_int, (_HANDLE, _HANDLE, _RANGE, ctypes.c_int, *_POSTED)),
    "hr_broadcast": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.c_uint32, *_POSTED),
    ),
    "hr_reduce_scatter": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.c_int, *_POSTED),
    ),
    "hr_all_gather": (ctypes.c_int, (_HANDLE, _HANDLE, _RANGE, *_POSTED)),
    "hr_reduce": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.c_int, ctypes.c_uint32, *_POSTED),
    ),
    "hr_reduce_array": (
        ctypes.c_int,
        (*_ARRAY, ctypes.c_int, ctypes.c_uint32, *_POSTED),
    ),
    "hr_reduce_pieces": (
        ctypes.c_int,
        (*_WHOLE, ctypes.c_int, ctypes.c_uint32, *_PIECES, *_POSTED),
    ),
    "hr_reduce_on_stream": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.c_int, ctypes.c_uint32, _STREAM, *_POSTED),
    ),
    "hr_all_to_all": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, _HANDLE, _RANGE, *_POSTED),
    ),
    "hr_gather": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, _HANDLE, _RANGE, ctypes.c_uint32, *_POSTED),
    ),
    "hr_scatter": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, _HANDLE, _RANGE, ctypes.c_uint32, *_POSTED),
    ),
    "hr_all_to_all_arrays": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_int, _ARRAYS, _ARRAYS, *_POSTED),
    ),
    "hr_all_gather_arrays": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_int, _ARRAYS, _ARRAYS, *_POSTED),
    ),
    "hr_all_gather_parts": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.POINTER(ctypes.c_uint64), *_POSTED),
    ),
    "hr_all_gather_into": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, _HANDLE, _RANGE, ctypes.POINTER(ctypes.c_uint64), *_POSTED),
    ),
    "hr_reduce_scatter_parts": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int, *_POSTED),
    ),
    "hr_reduce_scatter_into": (
        ctypes.c_int,
        (
            *(_HANDLE, _HANDLE, _RANGE, _HANDLE, _RANGE),
            *(ctypes.POINTER(ctypes.c_uint64), ctypes.c_int, *_POSTED),
        ),
    ),
    "hr_reduce_scatter_arrays": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_int, _ARRAYS, _ARRAYS, ctypes.c_int, *_POSTED),
    ),
    "hr_gather_arrays": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_int, _ARRAYS, _ARRAYS, ctypes.c_uint32, *_POSTED),
    ),
    "hr_scatter_arrays": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_int, _ARRAYS, _ARRAYS, ctypes.c_uint32, *_POSTED),
    ),
    "hr_barrier": (ctypes.c_int, (_HANDLE, *_POSTED)),
    "hr_send": (ctypes.c_int, (_HANDLE, _HANDLE, _RANGE, *_OTHER, *_POSTED)),
    "hr_recv": (ctypes.c_int, (_HANDLE, _HANDLE, _RANGE, *_OTHER, *_POSTED)),
    "hr_send_on_stream": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, *_OTHER, _STREAM, *_POSTED),
    ),
    "hr_recv_on_stream": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, *_OTHER, _STREAM, *_POSTED),
    ),
    "hr_send_array": (ctypes.c_int, (*_ARRAY, *_OTHER, *_POSTED)),
    "hr_recv_array": (ctypes.c_int, (*_ARRAY, *_OTHER, *_POSTED)),
    "hr_recv_source": (
        ctypes.c_int,
        (_HANDLE, _OPERATION, ctypes.POINTER(ctypes.c_uint32), _ERROR),
    ),
    "hr_all_reduce_on_stream": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.c_int, _STREAM, *_POSTED),
    ),
    "hr_broadcast_on_stream": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.c_uint32, _STREAM, *_POSTED),
    ),
    "hr_reduce_scatter_on_stream": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, ctypes.c_int, _STREAM, *_POSTED),
    ),
    "hr_reduce_scatter_into_on_stream": (
        ctypes.c_int,
        (
            *(_HANDLE, _HANDLE, _RANGE, _HANDLE, _RANGE),
            *(ctypes.POINTER(ctypes.c_uint64), ctypes.c_int, _STREAM, *_POSTED),
        ),
    ),
    "hr_all_gather_on_stream": (
        ctypes.c_int,
        (_HANDLE, _HANDLE, _RANGE, _STREAM, *_POSTED),
    ),
    "hr_stream_wait": (ctypes.c_int, (_HANDLE, _OPERATION, _STREAM, _ERROR)),
    "hr_all_reduce_array": (ctypes.c_int, (*_ARRAY, ctypes.c_int, *_POSTED)),
    "hr_broadcast_array": (ctypes.c_int, (*_ARRAY, ctypes.c_uint32, *_POSTED)),
    "hr_reduce_scatter_array": (ctypes.c_int, (*_ARRAY, ctypes.c_int, *_POSTED)),
    "hr_all_gather_array": (ctypes.c_int, (*_ARRAY, *_POSTED)),
    "hr_all_reduce_pieces": (
        ctypes.c_int,
        (*_WHOLE, ctypes.c_int, *_PIECES, *_POSTED),
    ),
    "hr_broadcast_pieces": (
        ctypes.c_int,
        (*_WHOLE, ctypes.c_uint32, *_PIECES, *_POSTED),
    ),
    "hr_reduce_scatter_pieces": (
        ctypes.c_int,
        (*_WHOLE, ctypes.c_int, *_PIECES, *_POSTED),
    ),
    "hr_all_gather_pieces": (ctypes.c_int, (*_WHOLE, *_PIECES, *_POSTED)),
    "hr_test": (
        ctypes.c_int,
        (_HANDLE, _OPERATION, ctypes.POINTER(ctypes.c_int), _ERROR),
    ),
    "hr_wait": (ctypes.c_int, (_HANDLE, _OPERATION, ctypes.c_int64, _ERROR)),
    "hr_discard": (None, (_HANDLE, _OPERATION)),
    "hr_layout_options_init_sized": (
        ctypes.c_int,
        (ctypes.POINTER(LayoutOptions), ctypes.c_size_t, _ERROR),
    ),
    "hr_layout_create": (
        ctypes.c_int,
        (
            _HANDLE,
            ctypes.POINTER(TensorSpec),
            ctypes.c_size_t,
            ctypes.POINTER(LayoutOptions),
            _HANDLE_OUT,
            _ERROR,
        ),
    ),
    "hr_layout_begin_backward": (ctypes.c_int, (_HANDLE, _ERROR)),
    "hr_layout_post": (ctypes.c_int, (_HANDLE, ctypes.c_uint32, *_POSTED)),
    "hr_layout_wait": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_uint32, ctypes.c_int64, _ERROR),
    ),
    "hr_layout_post_on_stream": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_uint32, _STREAM, *_POSTED),
    ),
    "hr_layout_wait_on_stream": (
        ctypes.c_int,
        (_HANDLE, ctypes.c_uint32, _STREAM, _ERROR),
    ),
    "hr_layout_barrier": (ctypes.c_int, (_HANDLE, *_POSTED)),
    "hr_layout_end_forward": (ctypes.c_int, (_HANDLE, _ERROR)),
    "hr_layout_set_iterations": (ctypes.c_int, (_HANDLE, ctypes.c_uint64, _ERROR)),
    "hr_layout_set_contributors": (ctypes.c_int, (_HANDLE, ctypes.c_uint32, _ERROR)),
    "hr_session_counters": (ctypes.c_int, (_HANDLE, ctypes.POINTER(Counters), _ERROR)),
}


class Call(threading.local):
    """What functions of the library write to, once for each thread: a post allocates little."""

    def __init__(self) -> None:
        super().__init__()
        self.error = ErrorText()


@functools.cache
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"={count}Q")


def packed(count: int, words: Iterable[int]) -> bytes:
    """So many numbers of 64 bits, one behind the other.

    An hr_array is two of them (memory, count), an hr_piece three (memory, offset, count); ctypes takes
    several times as long for the same bytes.
    """
    return _words(count).pack(*words)


def candidates() -> list[Path]:
    """Where the library may be, best first.

    HEADRACE_LIBRARY (a file, and then nothing else); the library folders of the install tree this
    package stands in; the build tree of the source tree it stands in.
    """
    chosen = os.environ.get("HEADRACE_LIBRARY")
    if chosen:
        return [Path(chosen)]
    found: list[Path] = []
    for parent in Path(__file__).resolve().parents:
        found += [parent / "libheadrace.so", parent / "lib" / "libheadrace.so"]
        found += sorted(parent.glob("lib/*-linux-gnu/libheadrace.so"))
        found.append(parent / "build" / "release" / "libheadrace.so")
    return found


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with every function's types set. ImportError says where it was looked for."""
    places = candidates()
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        looked = ", ".join(str(place.parent) for place in places[:6])
        raise ImportError(
            f"libheadrace.so was not found (looked in {looked}, ...): build it, or set "
            "HEADRACE_LIBRARY to the file"
        )
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def fill(options: Options, error: ErrorText) -> int:
    """hr_options_init: defaults and the environment."""
    return load().hr_options_init_sized(options, ctypes.sizeof(options), error)


def check(status: int, error: ErrorText) -> None:
    """Raises the exception for a status that is not 0."""
    if status != 0:
        raise failure(status, error)


def failure(status: int, error: ErrorText) -> errors.Error:
    """The exception for a status that is not 0."""
    name = load().hr_status_name(status).decode()
    return errors.make(error.text.decode(errors="replace"), name, status)


def version() -> str:
    """The version of libheadrace.so."""
    return load().hr_version().decode()


def set_text(options: Options, field: str, text: str | None) -> None:
    """Sets a field of bytes; None leaves it."""
    if text is None:
        return
    value = text.encode()
    # The field ends in a NUL byte, which ctypes does not insist on.
    most = getattr(Options, field).size - 1
    if len(value) > most:
        raise ValueError(
            f'{field} "{text}" has {len(value)} bytes, {most} are possible'
        )
    setattr(options, field, value)
