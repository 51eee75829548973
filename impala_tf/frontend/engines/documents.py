"""YAML documents and names for engines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

_LONGEST = 40  # jobs, pods and hosts append to names, which may have 63 characters
_FITS = re.compile(rf"[a-z]([a-z0-9-]{{0,{_LONGEST - 2}}}[a-z0-9])?")


def yaml_text(document: Mapping[str, Any]) -> str:
    """Returns a document as YAML: keys keep their order, texts of several lines are blocks."""
    import yaml  # few commands need it

    class Dumper(yaml.SafeDumper):
        """Writes YAML for people."""

        def ignore_aliases(self, data: Any) -> bool:
            """Writes repeated values in full, without aliases."""
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    # No width: long flags stay on their line.
    return str(yaml.dump(document, Dumper=Dumper, sort_keys=False, width=2**20))


def label(text: str, of: str = "") -> str:
    """Returns a DNS label (RFC 1035) of at most 40 characters for a name.

    A name that is a label stays as it is. Other names get a hash of themselves, so that similar
    names stay different.

    Args:
      text: the name.
      of: what the label gets a hash of in any case, such as a folder's whole path; '': nothing.
    """
    if not of and _FITS.fullmatch(text):
        return text
    mark = hashlib.sha256((of or text).encode("utf-8", "surrogatepass")).hexdigest()[:6]
    readable = re.sub(r"[^a-z0-9]+", "-", text.lower())[: _LONGEST - 7].strip("-")
    if not readable[:1].isalpha():
        readable = f"run-{readable}"[: _LONGEST - 7].strip("-")
    return f"{readable}-{mark}"
