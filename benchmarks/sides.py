"""What a tuned model is compared with: PyTorch eager, torch.compile, TVM without tuning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from felixlike.deploy import compile_model
from felixlike.frontend import import_model


def baselines(model: torch.nn.Module, inputs: tuple[Any, ...]) -> dict[str, Callable[[], object]]:
    """Name → a call. torch.compile is left out, with a word, where it does not work here."""
    untuned = compile_model(import_model(model, inputs))
    sides: dict[str, Callable[[], object]] = {"PyTorch eager": _torch(model, inputs)}
    compiled = _compiled(model, inputs)
    if compiled is not None:
        sides["torch.compile"] = compiled
    sides["TVM untuned"] = lambda: untuned(*inputs)
    return sides


def _torch(model: Any, inputs: tuple[Any, ...]) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return model(*inputs)

    return run


def _compiled(model: torch.nn.Module, inputs: tuple[Any, ...]) -> Callable[[], object] | None:
    run = _torch(torch.compile(model), inputs)
    try:
        run()
    except Exception as error:
        print(f"torch.compile does not work here: {type(error).__name__}", flush=True)
        torch._dynamo.reset()
        return None
    return run
