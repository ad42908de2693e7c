"""Measure text generation: python -m benchmarks.generation [--only NAME].

A model's `generate` under `torch.compile(backend="felixlike")`, with predicted schedules, is compared with PyTorch
eager and with torch.compile, each with a static and with a growing cache, and with OpenVINO, whose graph holds the
cache as its state. Whole calls that generate 32 tokens after a prompt of 32 are timed interleaved, each side in its own
process with a thread per core. The seconds of the first call, with empty caches, are noted. The benchmark writes
docs/results/generation.json and .md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from felixlike.bench.sides import Prepared
    from felixlike.measure.sides.processes import Loaded, Sides

PROMPT, TOKENS = 32, 32
NETWORKS = ("GPT-2", "LLaMA, 8 layers of 1024")
OURS = {"ours": "static", "ours, growing cache": None}
RIVALS = {
    "torch.compile": "static",
    "torch.compile, growing cache": None,
    "eager, static cache": "static",
    "eager": None,
}
CACHES = {**OURS, **RIVALS}
"""The cache of each side of PyTorch. `generate` makes a growing one unless told otherwise."""

OPENVINO, OPENVINO_DEFAULT = "OpenVINO float32", "OpenVINO default"
SIDES = (*CACHES, OPENVINO, OPENVINO_DEFAULT)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this; other rows stay")
    arguments = parser.parse_args()
    from benchmarks.results import of_this_machine, write_for_this_machine
    from felixlike.measure.sides.processes import Sides

    rows = dict(of_this_machine("generation").get("networks", {}))
    for name in NETWORKS:
        if arguments.only in name:
            with tempfile.TemporaryDirectory(prefix="felixlike-") as caches, Sides(Path(caches)) as sides:
                rows[name] = _measured(name, sides)
            ordered = {network_name: rows[network_name] for network_name in NETWORKS if network_name in rows}
            write_for_this_machine("generation", {"networks": ordered}, _text(ordered))


def network(name: str) -> Any:
    """Return the model, with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    if name == "GPT-2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    else:
        config = transformers.LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=4,
            vocab_size=32_000,
        )
        model = transformers.LlamaForCausalLM(config)
    model.generation_config.update(eos_token_id=None, disable_compile=True)
    return model.eval()


def model_and_prompt(name: str) -> tuple[nn.Module, tuple[Tensor]]:
    """Return a model and the tokens to go on from."""
    import torch

    return network(name), (torch.randint(0, 32_000, (1, PROMPT), generator=torch.Generator().manual_seed(1)),)


def loaded(side: str, name: str) -> Loaded:
    """Return a call that generates the tokens, and facts about its first one."""
    from benchmarks import generation_openvino
    from felixlike.bench import sides
    from felixlike.bench.openvino import FLOAT32

    prepare: Callable[[Any, Any], Prepared]
    if side in CACHES:
        package, prepare = "felixlike" if side in OURS else "torch", partial(_of_torch, side)
    else:
        hints = {**FLOAT32, "KV_CACHE_PRECISION": "f32"} if side == OPENVINO else {}
        package, prepare = "openvino", partial(generation_openvino.prepared, TOKENS, hints)
    return sides.loaded(package, prepare, partial(model_and_prompt, name))


def _of_torch(side: str, model: Any, inputs: tuple[Tensor]) -> Prepared:
    """Prepare the model's own `generate`."""
    import torch

    from felixlike.bench.sides import Prepared, dtypes

    if side in OURS:
        import felixlike  # noqa: F401 (its version is a fact of the side)

        model.forward = torch.compile(model.forward, backend="felixlike", options={"seconds": 0})
    elif side.startswith("torch.compile"):
        model.forward = torch.compile(model.forward)
    (prompt,) = inputs
    given = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0}
    call = partial(model.generate, prompt, max_new_tokens=TOKENS, cache_implementation=CACHES[side], **given)
    return Prepared(
        call, "predicted schedules" if side in OURS else "", lambda: (dtypes(model, inputs), torch.get_num_threads())
    )


def _measured(name: str, sides: Sides) -> dict[str, Any]:
    """Measure all sides of one network."""
    from felixlike.bench.answers import unpacked

    timed = sides.compare({side: partial(loaded, side, name) for side in SIDES}, seconds_a_side=15, slot=2)
    facts = {side: sides.facts[side] for side in timed}
    tokens = {side: unpacked(fact.answer)[0].tolist() for side, fact in facts.items()}
    return {
        "tokens a second": {side: TOKENS / timing.seconds for side, timing in timed.items()},
        "first call": {side: fact.seconds for side, fact in facts.items()},
        "precision": {side: fact.precision for side, fact in facts.items()},
        "same tokens": all(tokens[side] == tokens["eager"] for side in tokens if side != OPENVINO_DEFAULT),
    }


def _text(rows: Mapping[str, Any]) -> str:
    lines = [
        f"Tokens a second: {TOKENS} tokens after a prompt of {PROMPT}, batch 1, float32, random weights. Ours has"
        " predicted schedules, nothing is measured. The cache is static unless the column says otherwise; OpenVINO's is"
        f" the state of its graph. {OPENVINO_DEFAULT} has the precision in brackets and a cache of 8 bits, and does not"
        " count in ours ÷ best, which compares sides in float32. first: seconds of the first call with empty caches. It"
        " compiles two graphs in PyTorch.",
        "",
        f"| network |{''.join(f' {side} | first |' for side in SIDES)} ours ÷ best | same tokens |",
        f"| --- |{' --- |' * (2 * len(SIDES) + 2)}",
    ]
    for name, row in rows.items():
        speeds, first = row["tokens a second"], row["first call"]
        other = row.get("precision", {}).get(OPENVINO_DEFAULT)
        notes = {OPENVINO_DEFAULT: f" ({other})"} if other else {}
        cells = [f"{speeds[s]:.1f}{notes.get(s, '')} | {first[s]:.1f}" if s in speeds else "– | –" for s in SIDES]
        ours, rivals = ([speeds[side] for side in group if side in speeds] for group in (OURS, (*RIVALS, OPENVINO)))
        ratio = f"**{max(ours) / max(rivals):.2f}**" if ours and rivals else "–"
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} | {'yes' if row['same tokens'] else 'no'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
