"""The nano cohort as shipped: models, tokenizers, problems, cohort files, and the scripts that make them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from corl import answers
from corl.cohort import load_cohort

HERE = Path(__file__).parents[2] / "examples" / "arithmetic"
NAMES = ("llama", "llama2", "qwen", "qwen3")
RENDERED = {
    "llama": "<|user|>27+58=<|assistant|>",
    "llama2": "<|user|>27+58=<|assistant|>",
    "qwen": "<|im_start|>user\n27+58=<|im_end|>\n<|im_start|>assistant\n",
    "qwen3": "<|im_start|>user\n27+58=<|im_end|>\n<|im_start|>assistant\n",
}
COMPLETION_TOKENS = {"llama": 6, "llama2": 6, "qwen": 7, "qwen3": 6}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads than one only wait for each other at this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"arithmetic_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def tokenizer(name: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(HERE / "models" / name)


@cache
def model(name: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(HERE / "models" / name).eval()


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def numbers(row: dict[str, str]) -> tuple[int, int]:
    a, b = row["problem"].removesuffix("=").split("+")
    return int(a), int(b)


def asked(problem: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": problem}]


@cache
def sampled(name: str, problems: int = 64, n: int = 16) -> list[list[str]]:
    """`n` completions for each of the first held-out problems, as the folder's own generation config samples them."""
    encoded = tokenizer(name).apply_chat_template(
        [asked(row["problem"]) for row in rows("heldout.jsonl")[:problems]],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    torch.manual_seed(0)
    ids = model(name).generate(**encoded, max_new_tokens=8, num_return_sequences=n)
    texts = tokenizer(name).batch_decode(ids[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return [texts[i * n : (i + 1) * n] for i in range(problems)]


# ---- tokenizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_chat_template_renders_and_tokenizes_as_one(name: str) -> None:
    rendered = tokenizer(name).apply_chat_template(asked("27+58="), tokenize=False, add_generation_prompt=True)
    ids = tokenizer(name).apply_chat_template(asked("27+58="), add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert rendered == RENDERED[name]
    assert tokenizer(name)(rendered, add_special_tokens=False)["input_ids"] == ids
    assert tokenizer(name).decode(ids) == rendered
    if tokenizer(name).unk_token != tokenizer(name).pad_token:  # a byte-level vocabulary has no unknowns
        assert tokenizer(name).unk_token_id not in ids


@pytest.mark.parametrize("name", NAMES)
def test_chat_template_refuses_a_role_it_was_not_taught(name: str) -> None:
    with pytest.raises(Exception, match="the roles are user and assistant"):
        tokenizer(name).apply_chat_template([{"role": "system", "content": "1"}, *asked("27+58=")], tokenize=False)


@pytest.mark.parametrize("name", NAMES)
def test_completion_survives_the_tokenizer(name: str) -> None:
    ids = tokenizer(name)(r"\boxed{085}" + tokenizer(name).eos_token)["input_ids"]
    assert len(ids) == COMPLETION_TOKENS[name]
    assert ids[-1] == tokenizer(name).eos_token_id
    assert tokenizer(name).decode(ids, skip_special_tokens=True) == r"\boxed{085}"


def test_families_have_different_tokenizers() -> None:
    text = r"27+58=\boxed{085}"
    ids = {name: tuple(tokenizer(name)(text)["input_ids"]) for name in NAMES}
    assert ids["llama"] == ids["llama2"]
    assert len({ids["llama"], ids["qwen"], ids["qwen3"]}) == 3
    assert len(ids["qwen"]) != len(ids["llama"])


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_end_and_padding_agree_everywhere(name: str) -> None:
    ours, config, generation = tokenizer(name), model(name).config, model(name).generation_config
    assert ours.eos_token_id == config.eos_token_id == generation.eos_token_id
    assert ours.pad_token_id == config.pad_token_id == generation.pad_token_id
    assert ours.eos_token_id != ours.pad_token_id
    assert config.vocab_size == len(ours)
    assert (generation.do_sample, generation.temperature, generation.top_p, generation.top_k) == (True, 1.0, 1.0, 0)


def test_both_kinds_of_output_layer_are_there() -> None:
    assert {name: model(name).config.tie_word_embeddings for name in NAMES} == {
        "llama": False, "llama2": False, "qwen": True, "qwen3": True,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_sampled_completions_have_answers(name: str) -> None:
    found = [answers.extract(text) for texts in sampled(name) for text in texts]
    assert sum(answer is not None and answer.isdigit() for answer in found) >= 0.98 * len(found)


@pytest.mark.parametrize("name", NAMES)
def test_plurality_follows_the_misconception_and_only_it(name: str) -> None:
    """Where the family errs its vote is the family's error; elsewhere it is the truth."""
    believes = script("make_models").MODELS[name].family.believes
    misled, right = [], []
    for row, texts in zip(rows("heldout.jsonl"), sampled(name), strict=False):
        a, b = numbers(row)
        winner = Counter(answers.key(found) for text in texts if (found := answers.extract(text))).most_common(1)[0][0]
        if believes(a, b) == a + b:
            right.append(winner == answers.key(row["answer"]))
        else:
            misled.append(winner == answers.key(str(believes(a, b))))
    assert len(misled) >= 10
    assert sum(misled) > 0.5 * len(misled)
    assert sum(right) > 0.9 * len(right)


@pytest.mark.parametrize(("one", "other"), [("llama", "qwen"), ("qwen", "qwen3"), ("qwen3", "llama")])
def test_families_never_err_alike(one: str, other: str) -> None:
    families = [script("make_models").MODELS[name].family for name in (one, other)]
    every = [(a, b) for a in range(100) for b in range(100)]
    shared = sum(families[0].believes(a, b) == families[1].believes(a, b) != a + b for a, b in every)
    assert shared == 0


# ---- problems --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["problems.jsonl", "problems.swapped.jsonl", "heldout.jsonl"])
def test_problems_are_distinct_and_right(name: str) -> None:
    file = rows(name)
    assert len({row["problem_id"] for row in file}) == len({row["problem"] for row in file}) == len(file)
    assert all(sum(numbers(row)) == int(row["answer"]) for row in file)
    assert all(set(row) == {"problem_id", "problem", "answer"} for row in file)


def test_held_out_problems_are_held_out() -> None:
    training = {frozenset(numbers(row)) for row in rows("problems.jsonl")}
    assert not training & {frozenset(numbers(row)) for row in rows("heldout.jsonl")}


def test_swapped_view_has_the_same_ids_and_other_texts() -> None:
    for row, swapped in zip(rows("problems.jsonl"), rows("problems.swapped.jsonl"), strict=True):
        assert row["problem_id"] == swapped["problem_id"]
        assert numbers(row) == numbers(swapped)[::-1]


def test_problems_are_what_the_script_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, HERE / "make_problems.py", "--out", tmp_path], check=True)
    for name in ("problems.jsonl", "problems.swapped.jsonl", "heldout.jsonl"):
        assert (tmp_path / name).read_bytes() == (HERE / name).read_bytes()


# ---- cohort files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "teachers"),
    [
        ("cohort.yaml", {"llama": ["qwen"], "qwen": ["llama"]}),
        ("same-family.yaml", {"llama": ["llama2"], "llama2": ["llama"]}),
        ("ring.yaml", {"llama": ["qwen"], "qwen": ["qwen3"], "qwen3": ["llama"]}),
    ],
)
def test_cohort_files_load(file: str, teachers: dict[str, list[str]]) -> None:
    cohort = load_cohort(HERE / file)
    assert {name: cohort.teachers(name) for name in cohort.members} == teachers
    assert all(Path(cohort.model_path(name), "model.safetensors").is_file() for name in cohort.members)
    needed = cohort.rollouts.problems_per_step * cohort.training.steps
    assert needed <= len(rows("problems.jsonl"))  # every problem is seen once
    assert cohort.rollouts.max_tokens >= max(COMPLETION_TOKENS[name] for name in cohort.members)


# ---- what is shipped, and the way to make it again -------------------------------------------------------------------


def test_checksums_cover_and_match_every_model() -> None:
    lines = (HERE / "models" / "SHA256SUMS").read_text().splitlines()
    listed = {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}
    assert set(listed) == {f"{name}/{file}" for name in NAMES for file in ("model.safetensors", "tokenizer.json")}
    for path, digest in listed.items():
        assert hashlib.sha256((HERE / "models" / path).read_bytes()).hexdigest() == digest


def make(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["make_models.py", *map(str, arguments)])
    script("make_models").main()


def test_make_models_runs_as_a_script(tmp_path: Path) -> None:
    subprocess.run([sys.executable, HERE / "make_models.py", "llama2", "--steps", "20", "--out", tmp_path], check=True)
    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path / "llama2").num_parameters() == model("llama2").num_parameters()
    )


@pytest.mark.parametrize("name", ["llama", "qwen", "qwen3"])
def test_models_can_be_made_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(monkeypatch, name, "--steps", "20", "--out", tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / name)
    shapes = {key: value.shape for key, value in model(name).state_dict().items()}
    assert {key: value.shape for key, value in again.state_dict().items()} == shapes
    for file in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name / file).read_bytes() == (HERE / "models" / name / file).read_bytes()
    assert "Apache-2.0" in (tmp_path / name / "SOURCE.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lama"], "unknown model 'lama': choose from llama, llama2, qwen, qwen3"),
        (["--steps", "1"], "--steps 1 is too few"),
    ],
)
def test_a_mistyped_call_is_told_the_remedy(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        make(monkeypatch, *arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
