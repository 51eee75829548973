"""--precision: bfloat16 if the processor has instructions for it, else float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from impala_tf.agents import precision
from impala_tf.config import AgentConfig


@pytest.mark.parametrize(
    ("features", "chosen"),
    [
        ("flags\t\t: fpu sse2 avx512f avx512_bf16", "bfloat16"),
        ("Features\t: fp asimd bf16", "bfloat16"),
        ("flags\t\t: fpu sse2 avx512f", "float32"),
        ("", "float32"),
    ],
)
def test_bfloat16_is_used_if_the_processor_has_it(
    tmp_path: Path, features: str, chosen: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One of fifty cheap machines may be old. It must still work, not be slow, and say so."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{features}\nbogomips\t: 4890\n")
    for given in (AgentConfig("NatureAgent", precision="float32"), AgentConfig("MLPAgent")):
        assert precision.torso_dtype(given, cpuinfo) == "float32"
    assert precision.torso_dtype(AgentConfig("NatureAgent"), cpuinfo) == chosen
    asked = AgentConfig("NatureAgent", precision="bfloat16")
    assert precision.torso_dtype(asked, cpuinfo) == chosen
    assert ("--precision=bfloat16" in caplog.text) == (chosen == "float32")


def test_on_a_gpu_bfloat16_is_for_residual_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are no faster with it there."""
    details = {"compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert precision.torso_dtype(AgentConfig("ResNetAgent")) == "bfloat16"
    assert precision.torso_dtype(AgentConfig("NatureAgent")) == "float32"
    details["compute_capability"] = (7, 5)  # Turing has no bfloat16
    assert precision.torso_dtype(AgentConfig("ResNetAgent")) == "float32"
