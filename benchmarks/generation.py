"""Measure text generation: python -m benchmarks.generation [--only NAME].

A model's `generate` under `torch.compile(backend="felixlike")`, with predicted schedules, is compared with PyTorch
eager and with torch.compile, each with a static and with a growing cache. Whole calls that generate 32 tokens after a
prompt of 32 are timed interleaved, each side in its own process with a thread per core. The seconds of the first call,
from an empty store, are noted. The benchmark writes docs/results/generation.json and .md.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felixlike.measure.sides.processes import Sides

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
"""The cache of each side. `generate` makes a growing one unless told otherwise."""


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
            with Sides() as sides, tempfile.TemporaryDirectory(prefix="felixlike-") as folder:
                rows[name] = _measured(name, sides, Path(folder))
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


def generated(side: str, name: str, folder: Path) -> Callable[[], Any]:
    """Return a call that generates the tokens. The seconds of its first call are written to a file of the folder."""
    import torch

    model = network(name)
    prompt = torch.randint(0, 32_000, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    if side in OURS:
        options: dict[str, Any] = {"seconds": 0, "store": str(folder / "store.sqlite")}
        model.forward = torch.compile(model.forward, backend="felixlike", options=options)
    elif side.startswith("torch.compile"):
        model.forward = torch.compile(model.forward)
    given = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0}
    call = functools.partial(model.generate, prompt, max_new_tokens=TOKENS, cache_implementation=CACHES[side], **given)
    started = time.monotonic()
    tokens = call()
    _file(folder, side).write_text(f"{time.monotonic() - started} {tokens.tolist()}")
    return call


def _file(folder: Path, side: str) -> Path:
    return folder / f"{side.replace(' ', '_')}.txt"


def _measured(name: str, sides: Sides, folder: Path) -> dict[str, Any]:
    """Measure all sides of one network."""
    timed = sides.compare({side: partial(generated, side, name, folder) for side in CACHES}, seconds_a_side=15, slot=2)
    notes = {side: _file(folder, side).read_text().split(" ", 1) for side in timed}
    return {
        "tokens a second": {side: TOKENS / timing.seconds for side, timing in timed.items()},
        "first call": {side: float(first) for side, (first, _) in notes.items()},
        "same tokens": len({tokens for _, tokens in notes.values()}) == 1,
    }


def _text(rows: Mapping[str, Any]) -> str:
    lines = [
        f"Tokens a second: {TOKENS} tokens after a prompt of {PROMPT}, batch 1, float32, random weights. Ours has"
        " predicted schedules, nothing is measured. The cache is static unless the column says otherwise. first:"
        " seconds of the first call, which compiles two graphs, or three with a growing cache.",
        "",
        f"| network |{''.join(f' {side} | first |' for side in CACHES)} ours ÷ best | same tokens |",
        f"| --- |{' --- |' * (2 * len(CACHES) + 2)}",
    ]
    for name, row in rows.items():
        speeds, first = row["tokens a second"], row["first call"]
        cells = [f"{speeds[s]:.1f} | {first[s]:.1f}" if s in speeds else "– | –" for s in CACHES]
        ours, rivals = ([speeds[side] for side in group if side in speeds] for group in (OURS, RIVALS))
        ratio = f"**{max(ours) / max(rivals):.2f}**" if ours and rivals else "–"
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} | {'yes' if row['same tokens'] else 'no'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
