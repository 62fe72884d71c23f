"""The sizing table of docs/operations.md, written from what `corl check` reckons with.

python -m corl.size_reference docs/operations.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from corl import field_tables
from corl.cohort_models import LoraSettings, TrainingSettings
from corl.model_size import BYTES, ModelSize, checkpoint_bytes, judge_bytes, trainer_bytes

__all__ = ["reference", "rewritten"]

BEGIN = "<!-- sizes: written by python -m corl.size_reference -->"
END = "<!-- end of sizes -->"

MODELS = {
    "SmolLM2-135M": 134_515_008,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen2.5-3B": 3_085_938_688,
    "Llama-3.1-8B": 8_030_261_248,
    "Qwen2.5-14B": 14_770_033_664,
}
"""Parameters, tied ones once."""


def reference() -> str:
    """Markdown: a row a model, its checkpoint in bfloat16, in GB of 10^9 bytes."""
    head = "| model | snapshot, each step | judge, vllm | judge, transformers | trainer | trainer, LoRA | checkpoint |"
    lines = [head, "| --- " * 7 + "|"]
    for name, parameters in MODELS.items():
        size = ModelSize(name, parameters, parameters * BYTES["bfloat16"], True)
        cells = (
            size.stored_bytes,
            judge_bytes(size, "vllm", {}),
            judge_bytes(size, "transformers", {}),
            trainer_bytes(size, TrainingSettings()),
            trainer_bytes(size, TrainingSettings(lora=LoraSettings())),
            checkpoint_bytes(size),
        )
        lines.append(f"| {name} | " + " | ".join(f"{cell / 1e9:.1f}" for cell in cells) + " |")
    return "\n".join(lines)


def rewritten(page: str) -> str:
    """The page with its table written anew. Raises ValueError if the page has no place for it."""
    return field_tables.rewritten(page, BEGIN, END, reference())


def main(path: Path) -> None:
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
