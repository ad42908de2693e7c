"""OpenVINO's side of text generation gives the tokens of the model's own `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from benchmarks.generation_openvino import prepared
from felixlike.bench.openvino import FLOAT32


def _gpt2() -> Any:
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, initializer_range=0.5))


def _llama() -> Any:
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "intermediate_size": 64}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, initializer_range=0.5))


@pytest.mark.parametrize("make", [_gpt2, _llama])
def test_openvino_generates_the_same_tokens(make: Any) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is optional: pip install 'felixlike[bench]'")
    torch.manual_seed(0)
    model = make().eval()
    prompt = torch.randint(0, 50, (1, 5))
    rules = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    wanted = model.generate(prompt, max_new_tokens=12, **rules)[0].tolist()
    assert len(set(wanted)) > 5  # tokens that repeat would be right by chance
    call = prepared(12, {**FLOAT32, "KV_CACHE_PRECISION": "f32"}, model, (prompt,))
    for _ in range(2):  # the second call starts from an empty cache again
        assert call.run()[0].tolist() == wanted  # type: ignore[index]
    assert call.read_back()[0] == "float32"
