"""--precision: bfloat16 if the processor has instructions for it, else float32."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tensorflow as tf

from impala_tf.agents import precision
from impala_tf.config import AgentConfig

X86 = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f {}\nbogomips\t: 4890\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\n"


@pytest.mark.parametrize("machine", [X86.format("avx512_bf16"), ARM.format("bf16")])
def test_bfloat16_is_used_if_the_processor_has_it(tmp_path: Path, machine: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(machine)
    for given in (AgentConfig("NatureAgent"), AgentConfig("NatureAgent", precision="bfloat16")):
        assert precision.torso_dtype(given, cpuinfo) == "bfloat16"
    for given in (AgentConfig("NatureAgent", precision="float32"), AgentConfig("MLPAgent")):
        assert precision.torso_dtype(given, cpuinfo) == "float32"


@pytest.mark.parametrize("machine", [X86.format(""), ARM.format(""), None])
def test_old_processors_use_float32_and_warn(
    tmp_path: Path, machine: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One of fifty cheap machines may be old. It must still work, and not be slow."""
    cpuinfo = tmp_path / "cpuinfo"
    if machine is not None:
        cpuinfo.write_text(machine)
    given = AgentConfig("ResNetAgent", precision="bfloat16")
    with caplog.at_level(logging.WARNING):
        assert precision.torso_dtype(given, cpuinfo) == "float32"
    assert "--precision=bfloat16" in caplog.text


@pytest.mark.parametrize(
    ("agent_name", "capability", "chosen"),
    [
        ("ResNetAgent", (9, 0), "bfloat16"),
        ("ResNetAgent", (7, 5), "float32"),  # Turing has no bfloat16
        ("NatureAgent", (9, 0), "float32"),
    ],
)
def test_on_a_gpu_bfloat16_is_for_residual_networks(
    monkeypatch: pytest.MonkeyPatch, agent_name: str, capability: tuple[int, int], chosen: str
) -> None:
    """Others are no faster with it there."""
    details = {"compute_capability": capability}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert precision.torso_dtype(AgentConfig(agent_name)) == chosen
