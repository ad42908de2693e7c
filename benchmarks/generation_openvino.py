"""Generate text with OpenVINO, as its own tools convert models of transformers.

Input: a model of transformers with a growing cache. Output: a call that generates tokens. The cache's keys and values
are state of the graph, which OpenVINO joins with its attention kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from felixlike.bench.sides import Prepared


def prepared(count: int, hints: Mapping[str, str], model: Any, inputs: tuple[Tensor]) -> Prepared:
    """Prepare a call that generates the most probable tokens.

    Args:
        count: Number of new tokens.
        hints: Properties of the compiled graph.
        model: A model with a `config` of transformers.
        inputs: The tokens to go on from, of shape [1, length].
    """
    from felixlike.bench import openvino
    from felixlike.bench.sides import Prepared

    request = openvino.compiled(_graph(model), **hints)
    settings = f"cache as state, {openvino.stated(dict(hints))}"
    (prompt,) = inputs
    return Prepared(lambda: _generated(request, prompt.numpy(), count), settings, lambda: openvino.read_back(request))


def _generated(request: Any, prompt: Any, count: int) -> Any:
    """Return the tokens of a prompt and `count` more, of shape [1, length + count]."""
    request.reset_state()
    tokens, new = prompt, prompt
    for _ in range(count):
        places = np.arange(tokens.shape[1])
        asked = places[-new.shape[1] :]
        hidden = np.finfo(np.float32).min * (places > asked[:, None])
        mask = hidden.astype(np.float32)[None, None]
        given = [new, mask, asked[None], np.zeros(1, np.int32)]
        logits = request.infer(given, share_inputs=True, share_outputs=True)[0]
        new = logits[:, -1].argmax(-1)[:, None]
        tokens = np.concatenate([tokens, new], 1)
    return tokens


def _graph(model: Any) -> Any:
    """Return the graph of one step: tokens, mask, positions and the state before it to logits and the state after."""
    from felixlike.bench import openvino

    package = openvino.imported()
    from openvino import opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    shape = [1, heads, -1, config.hidden_size // config.num_attention_heads]
    states = 2 * config.num_hidden_layers
    before, new = 3, 2  # example lengths, any
    caches = [torch.zeros([before if size == -1 else size for size in shape]) for _ in range(states)]
    example = (
        torch.zeros(1, new, dtype=torch.long),
        torch.zeros(1, 1, new, before + new),
        torch.arange(before, before + new)[None],
        torch.zeros(1, dtype=torch.int32),
        *caches,
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it traces the module, which PyTorch advises against
        graph = package.convert_model(_Step(model), example_input=example)
    names = [(f"before.{place}", f"after.{place}") for place in range(states)]
    for port, (name, _) in zip(graph.inputs[-states:], names, strict=True):
        port.get_tensor().set_names({name})
    for port, (_, name) in zip(graph.outputs[-states:], names, strict=True):
        port.get_tensor().set_names({name})
    shapes = [[1, -1], [1, 1, -1, -1], [1, -1], [1], *([shape] * states)]
    graph.reshape(dict(zip(graph.inputs, shapes, strict=True)))
    apply_make_stateful_transformation(graph, dict(names))
    empty = opset13.constant(np.array([0 if size == -1 else size for size in shape]))
    for operator in graph.get_ops():
        if operator.get_type_name() == "ReadValue":
            operator.set_arguments([opset13.broadcast(opset13.constant(np.float32(0)), empty)])
    graph.validate_nodes_and_infer_types()
    return graph


class _Step(nn.Module):
    """One step of a model as a function of tensors alone.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, beams: Tensor, *before: Tensor) -> Any:
        """Return logits, and keys and values of each layer. Selecting beams is part of the pattern that is joined."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = DynamicCache()
        for keys, values in zip(before[::2], before[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys.index_select(0, beams), values.index_select(0, beams)
            cache.layers.append(layer)
        result = self.model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        after = [tensor for layer in result.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return result.logits, *after
