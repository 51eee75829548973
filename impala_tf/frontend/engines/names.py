"""Names of runs, for engines that allow few characters in a name."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 40  # a job, a pod and a host name add their own endings, up to 63 characters
_FITS = re.compile(rf"[a-z]([a-z0-9-]{{0,{_LONGEST - 2}}}[a-z0-9])?")


def label(text: str) -> str:
    """Returns a DNS label (RFC 1035) of at most 40 characters for a name.

    A name that is one stays as it is. Others get a hash of themselves, so that names that look
    alike do not become the same.
    """
    if _FITS.fullmatch(text):
        return text
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    readable = re.sub(r"[^a-z0-9]+", "-", text.lower())[: _LONGEST - 7].strip("-")
    if not readable[:1].isalpha():
        readable = f"run-{readable}"[: _LONGEST - 7].strip("-")
    return f"{readable}-{mark}"
