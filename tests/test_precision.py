"""--precision: coarse where the machine has the instructions for it, float32 elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from impala_tf.agents import precision
from impala_tf.config import AgentConfig

X86 = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f {}\nbogomips\t: 4890\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\n"


@pytest.mark.parametrize("machine", [X86.format("avx512_bf16"), ARM.format("bf16")])
def test_bfloat16_is_used_where_the_processor_has_it(tmp_path: Path, machine: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(machine)
    asked = AgentConfig("SimpleConvNetAgent", "bfloat16")
    assert precision.torso_dtype(asked, cpuinfo) == "bfloat16"
    assert precision.torso_dtype(AgentConfig("SimpleConvNetAgent"), cpuinfo) == "float32"


@pytest.mark.parametrize("machine", [X86.format(""), ARM.format(""), None])
def test_old_processors_go_on_in_float32_and_say_so(
    tmp_path: Path, machine: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Among fifty cheap machines one may be old: it must neither be slow nor stay away."""
    cpuinfo = tmp_path / "cpuinfo"
    if machine is not None:
        cpuinfo.write_text(machine)
    asked = AgentConfig("ResNetAgent", "bfloat16")
    with caplog.at_level(logging.WARNING):
        assert precision.torso_dtype(asked, cpuinfo) == "float32"
    assert "--precision=bfloat16" in caplog.text
