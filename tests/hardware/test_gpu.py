"""GPU targets without a GPU, and a complete run where there is a GPU."""

import pytest
import torch

import felixlike as fx
from felixlike.errors import NoGPU, WrongArchitecture
from felixlike.hardware import device_name, gpu_at_hand, resolve_target, target_device


def test_cache_sizes_depend_on_the_architecture_only() -> None:
    small, large = (target_device(resolve_target(arch)) for arch in ("sm_80", "sm_90"))
    assert (small.kind, small.cores, large.cores) == ("cuda", 108, 132)
    assert small.l2_bytes < large.l2_bytes


def test_measuring_needs_a_gpu_of_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felixlike.hardware.gpu.gpu_at_hand", lambda: None)
    with pytest.raises(NoGPU):
        device_name(resolve_target("sm_90"))
    monkeypatch.setattr("felixlike.hardware.gpu.gpu_at_hand", lambda: ("NVIDIA A100", "sm_80"))
    with pytest.raises(WrongArchitecture, match=r"sm_90.* NVIDIA A100 .*sm_80"):
        device_name(resolve_target("sm_90"))
    assert device_name(resolve_target("sm_80")) == "NVIDIA A100"


@pytest.mark.skipif(not torch.cuda.is_available() or gpu_at_hand() is None, reason="there is no GPU")
def test_a_small_model_is_tuned_and_correct() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Softmax(-1)).eval()
    inputs = torch.randn(8, 64)
    tuned = fx.optimize(model, inputs, rounds=2, target="cuda", progress=False)
    assert tuned.report.error < 1e-4
    torch.testing.assert_close(tuned(inputs.cuda()).cpu(), model(inputs), rtol=1e-4, atol=1e-4)
