"""The bytes that this process has allocated and not freed, exact to the last one."""

from __future__ import annotations

import ctypes
import re


def used_memory() -> int:
    """Returns the bytes in use in all of malloc's arenas (Linux, glibc)."""
    libc = ctypes.CDLL("libc.so.6")
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    report = (text.value or b"").decode()
    libc.free(text)
    totals = report[report.rindex("</heap>") :]
    free = re.findall(r'<total type="(?:fast|rest)" count="\d+" size="(\d+)"', totals)
    mapped = re.search(r'<total type="mmap" count="\d+" size="(\d+)"', totals)
    system = re.search(r'<system type="current" size="(\d+)"', totals)
    assert mapped and system, "malloc_info has another format"
    return int(system[1]) + int(mapped[1]) - sum(map(int, free))
