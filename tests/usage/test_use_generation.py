"""Tests for language models that generate text under torch.compile, with the caches that transformers makes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from felixlike.dynamo import backend, graph_sizes
from felixlike.errors import NotCompiledWarning

transformers = pytest.importorskip("transformers")

VOCABULARY = 100
PROMPT, TOKENS = 4, 4

_SMALL = {"vocab_size": VOCABULARY, "d_model": 32, "d_ff": 48, "d_kv": 16, "num_layers": 1, "num_heads": 2}


def _gpt2() -> Any:
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": VOCABULARY}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def _llama() -> Any:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "vocab_size": VOCABULARY}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def _t5() -> Any:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**_SMALL, decoder_start_token_id=0))


def _whisper() -> Any:
    layers = {f"{side}_{what}": count for side in ("encoder", "decoder") for what, count in
              (("layers", 1), ("attention_heads", 2), ("ffn_dim", 48))}  # fmt: skip
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = transformers.WhisperConfig(
        **layers,
        **tokens,
        vocab_size=VOCABULARY,
        d_model=32,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=32,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    return transformers.WhisperForConditionalGeneration(config)


def _prompts(batch: int) -> dict[str, Any]:
    prompts = torch.randint(3, VOCABULARY, (batch, PROMPT))
    mask = torch.ones_like(prompts)
    mask[1:, :2] = 0  # shorter prompts are padded on the left
    return {"input_ids": prompts, "attention_mask": mask}


def _sounds(batch: int) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 8, 40)}


def _tokens(model: Any, inputs: dict[str, Any], **options: Any) -> torch.Tensor:
    options |= {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    return model.generate(**inputs, **options)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for lengths up to that of a prompt with all tokens."""
    ranges = replace(graph_sizes.RANGES, length=PROMPT + TOKENS, room=0.0)
    monkeypatch.setattr(graph_sizes, "RANGES", ranges)


class _Interrupt(transformers.StoppingCriteria):  # type: ignore[misc,name-defined]
    """Raises KeyboardInterrupt after some tokens, as Ctrl-C does.

    Args:
        length: Number of tokens, with the prompt.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, tokens: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if tokens.shape[1] == self.length:
            raise KeyboardInterrupt
        return torch.zeros(tokens.shape[0], dtype=torch.bool)


def _interrupt(model: Any, inputs: dict[str, Any], **options: Any) -> None:
    """Interrupt the generation of text between two tokens."""
    length = inputs["input_ids"].shape[1] + 2
    with pytest.raises(KeyboardInterrupt):
        _tokens(model, inputs, stopping_criteria=[_Interrupt(length)], **options)


def _resumed_tokens(model: Any, inputs: dict[str, Any], cache: Any) -> torch.Tensor:
    """Return the tokens of two calls, of which the second one goes on from the cache of the first one."""
    rules: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "past_key_values": cache}
    begun = model.generate(**inputs, max_new_tokens=2, **rules)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 2), value=1)
    resumed: torch.Tensor = model.generate(input_ids=begun, attention_mask=mask, max_new_tokens=TOKENS - 2, **rules)
    return resumed


@pytest.mark.parametrize(
    ("make", "inputs", "batch", "resumes"),
    [
        (_gpt2, _prompts, 1, True),
        (_llama, _prompts, 3, False),
        (_t5, _prompts, 3, False),
        (_whisper, _sounds, 1, False),
    ],
)
def test_static_caches_give_eagers_tokens(
    make: Callable[[], Any], inputs: Callable[[int], dict[str, Any]], batch: int, resumes: bool, tmp_path: Path
) -> None:
    """An interrupt between tokens leaves the model as it was; text goes on from the cache of an earlier call."""
    torch.manual_seed(0)
    model = make().eval()
    model.generation_config.update(eos_token_id=None)
    first, second = inputs(batch), inputs(batch)
    expected = [_tokens(model, given) for given in (first, second)]
    options: dict[str, Any] = {"seconds": 0, "store": str(tmp_path / "store.sqlite")}
    model.forward = torch.compile(model.forward, backend="felixlike", options=options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if resumes:
            _interrupt(model, first, cache_implementation="static")
        tokens = [_tokens(model, given, cache_implementation="static") for given in (first, second)]
        if resumes:
            size = first["input_ids"].shape[1] + TOKENS
            cache = transformers.StaticCache(config=model.config, max_cache_len=size)
            tokens, expected = [*tokens, _resumed_tokens(model, first, cache)], [*expected, expected[0]]
    torch._dynamo.reset()
    assert [str(warning.message) for warning in caught if warning.category is NotCompiledWarning] == []
    assert all(map(torch.equal, tokens, expected))


@pytest.mark.parametrize(
    ("make", "inputs", "batch", "dynamic", "resumes"),
    [
        (_gpt2, _prompts, 1, True, False),
        (_llama, _prompts, 3, None, True),
        (_t5, _prompts, 3, None, False),
        (_whisper, _sounds, 1, None, False),
    ],
)
def test_growing_caches_give_eagers_tokens(
    make: Callable[[], Any],
    inputs: Callable[[int], dict[str, Any]],
    batch: int,
    dynamic: bool | None,
    resumes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One version serves all lengths but those of one, though Dynamo first captures graphs of one length."""
    torch.manual_seed(0)
    model, given = make().eval(), inputs(batch)
    model.generation_config.update(eos_token_id=None)
    expected = _tokens(model, given)
    made: list[str] = []
    create = backend.CompiledGraph.__init__

    def noted(self: backend.CompiledGraph, *arguments: Any) -> None:
        create(self, *arguments)
        made.append("compiled")

    monkeypatch.setattr(backend.CompiledGraph, "__init__", noted)
    options: dict[str, Any] = {"seconds": 0, "store": str(tmp_path / "store.sqlite")}
    model.forward = torch.compile(model.forward, backend="felixlike", options=options, dynamic=dynamic)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokens = [_tokens(model, given) for _ in range(2)]  # graphs of later tokens are compiled at their second call
        versions = len(made)
        if resumes:
            _interrupt(model, given)
        tokens.append(_tokens(model, given))
        later_versions = len(made)
        if resumes:
            tokens.append(_resumed_tokens(model, given, transformers.DynamicCache()))
    torch._dynamo.reset()
    assert [str(warning.message) for warning in caught if warning.category is NotCompiledWarning] == []
    assert all(torch.equal(each, expected) for each in tokens)
    assert later_versions == versions <= (2 if dynamic else 5)
