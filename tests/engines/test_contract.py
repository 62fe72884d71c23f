"""What every engine must do, run on each engine and two architectures with different tokenizers.

Reference for tokens and log-probabilities: a plain transformers forward pass over prompt and completion.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from corl_judge.engines.base import GenerateRequest, PromptRejected, Sample, WeightsRejected
from transformers import AutoModelForCausalLM

from corl.weights import checkpoint_digest, open_snapshot
from corl.wire import ImagePart, ImageURL, Message, Sampling, TextPart
from tests.engine_fixtures import RunningEngine
from tests.tiny_models import perturbed, publish, stored_tensors

KINDS = [
    pytest.param((name, architecture), id=f"{name}-{architecture}", marks=marks)
    for name, marks in (("transformers", ()), ("vllm", (pytest.mark.vllm, pytest.mark.timeout(900))))
    for architecture in ("llama", "qwen")
]
GREEDY = Sampling(temperature=0.0, max_tokens=12)
TOLERANCE = 1e-4


@pytest.fixture(params=KINDS)
def running(request: pytest.FixtureRequest, running_engines: Callable[[str, str], RunningEngine]) -> RunningEngine:
    return running_engines(*request.param)


class Reference:
    """The same model as a plain transformers one, with other weights if given."""

    def __init__(self, checkpoint: Path, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        if tensors is not None:
            own = self.model.state_dict()
            self.model.load_state_dict({**own, **tensors})
            self.model.tie_weights()

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int], completion: Sequence[int]) -> torch.Tensor:
        """[len(completion), vocab]: what each token of the completion was drawn from."""
        logits: torch.Tensor = self.model(torch.tensor([[*prompt, *completion]])).logits
        return logits[0, len(prompt) - 1 : -1]

    def error(self, prompt: Sequence[int], sample: Sample, sampling: Sampling) -> float:
        """The largest difference between the sample's log-probabilities and the reference's."""
        logits = self.logits(prompt, sample.token_ids) / (sampling.temperature or 1.0)
        if sampling.top_k:
            kth = logits.topk(sampling.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        if sampling.top_p < 1:
            ordered, order = logits.softmax(-1).sort(-1, descending=True)
            outside = (ordered.cumsum(-1) - ordered) >= sampling.top_p
            logits = logits.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
        wanted = logits.log_softmax(-1).gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]
        return float((wanted - torch.tensor(sample.logprobs)).abs().max())

    def greedy(self, prompt: Sequence[int], max_tokens: int, eos: Sequence[int]) -> list[int]:
        ids: list[int] = []
        while len(ids) < max_tokens and not (ids and ids[-1] in eos):
            ids.append(int(self.logits(prompt, [*ids, 0])[-1].argmax()))
        return ids


async def generate(
    running: RunningEngine, prompt: Sequence[int], sampling: Sampling, n: int = 1, seed: int = 0
) -> list[Sample]:
    return await running.engine.generate(GenerateRequest(list(prompt), prompt, n, sampling, seed))


def question(running: RunningEngine, number: int = 7) -> list[int]:
    return running.engine.encode(f"What is {number} plus 5?")


# Facts and prompts ----------------------------------------------------------------------------------------------------


def test_facts_tell_the_model(running: RunningEngine) -> None:
    facts = running.facts
    config = json.loads((running.checkpoint / "config.json").read_text())
    assert facts.name == running.name
    assert facts.vocab_size == config["vocab_size"]
    assert facts.max_model_len == config["max_position_embeddings"]
    assert facts.chat_template is (running.architecture == "qwen")
    assert facts.weights.version == facts.weights.incarnation == 0
    assert facts.weights.digest == checkpoint_digest(running.checkpoint)
    assert running.engine.version == facts.weights


def test_end_tokens_are_those_of_config_generation_config_and_tokenizer(running: RunningEngine) -> None:
    tokenizer_ids = {"llama": {2}, "qwen": {259, 260}}  # <|im_end|>, and <|endoftext|> by the generation config alone
    assert set(running.facts.eos_token_ids) == tokenizer_ids[running.architecture]


def test_a_string_is_one_user_message_where_there_is_a_template(running: RunningEngine) -> None:
    as_string = running.engine.encode("1+1?")
    as_message = running.engine.encode([Message(role="user", content="1+1?")])
    as_parts = [TextPart(type="text", text="1+"), TextPart(type="text", text="1?")]
    assert as_string == as_message == running.engine.encode([Message(role="user", content=as_parts)])
    assert (len(as_string) > 4) is (running.architecture == "qwen")


def test_messages_without_a_template_are_joined_by_newlines(running: RunningEngine) -> None:
    messages = [Message(role="user", content="a"), Message(role="assistant", content="b")]
    if running.architecture == "llama":
        assert running.engine.encode(messages) == running.engine.encode("a\nb")
    else:
        assert len(running.engine.encode(messages)) > len(running.engine.encode("a\nb"))


def test_token_ids_pass_through(running: RunningEngine) -> None:
    assert running.engine.encode([5, 6, 7]) == [5, 6, 7]


def test_prompts_that_cannot_run_are_refused_by_name(running: RunningEngine) -> None:
    vocab, length = running.facts.vocab_size, running.facts.max_model_len
    with pytest.raises(PromptRejected, match=f"token 1 is {vocab}, outside the vocabulary"):
        running.engine.encode([5, vocab])
    with pytest.raises(PromptRejected, match="empty"):
        running.engine.encode([])
    with pytest.raises(PromptRejected, match=f"prompt of {length} tokens.*max_model_len"):
        running.engine.encode([5] * length)
    image = ImagePart(type="image_url", image_url=ImageURL(url="data:image/png;base64,AAAA"))
    with pytest.raises(PromptRejected, match="image_url"):
        running.engine.encode([Message(role="user", content=[image])])


def test_a_template_that_refuses_a_role_is_a_rejected_prompt(running: RunningEngine) -> None:
    messages = [Message(role="system", content="be brief"), Message(role="user", content="1+1?")]
    if running.architecture == "qwen":
        with pytest.raises(PromptRejected, match="no system messages"):
            running.engine.encode(messages)


async def test_prompt_and_max_tokens_must_fit_together(running: RunningEngine) -> None:
    length = running.facts.max_model_len
    (fits,) = await generate(running, [5] * (length - 3), Sampling(max_tokens=3))
    assert 1 <= len(fits.token_ids) <= 3
    with pytest.raises(PromptRejected, match=f"{length - 3} tokens and max_tokens 4 exceed"):
        await generate(running, [5] * (length - 3), Sampling(max_tokens=4))


# Sampling -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=24),
        Sampling(max_tokens=24, temperature=0.6),
        Sampling(max_tokens=24, top_k=5),
        Sampling(max_tokens=24, temperature=1.3, top_p=0.7),
        GREEDY,
    ],
    ids=str,
)
async def test_logprobs_are_those_of_the_distribution_sampled_from(running: RunningEngine, sampling: Sampling) -> None:
    reference = Reference(running.checkpoint)
    n = 1 if sampling.temperature == 0 else 3
    prompts = [question(running, i) for i in (3, 14, 159)]
    groups = await asyncio.gather(*(generate(running, prompt, sampling, n, seed=i) for i, prompt in enumerate(prompts)))
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            assert len(sample.logprobs) == len(sample.token_ids)
            assert reference.error(prompt, sample, sampling) < TOLERANCE


async def test_greedy_is_the_most_likely_token(running: RunningEngine) -> None:
    prompt = question(running)
    (sample,) = await generate(running, prompt, GREEDY)
    assert sample.token_ids == Reference(running.checkpoint).greedy(prompt, 12, running.facts.eos_token_ids)


async def test_many_prompts_of_many_lengths_do_not_mix(running: RunningEngine) -> None:
    prompts = [question(running, 10**i)[: 30 + i] * (1 + i % 3) for i in range(12)]
    alone = [(await generate(running, prompt, GREEDY))[0].token_ids for prompt in prompts]
    groups = await asyncio.gather(*(generate(running, prompt, GREEDY) for prompt in prompts))
    assert [group[0].token_ids for group in groups] == alone


async def test_samples_of_a_prompt_differ_and_so_do_seeds(running: RunningEngine) -> None:
    prompt = question(running)
    first = await generate(running, prompt, Sampling(max_tokens=16), n=8, seed=1)
    other = await generate(running, prompt, Sampling(max_tokens=16), n=8, seed=2)
    texts = [tuple(sample.token_ids) for sample in [*first, *other]]
    assert len(first) == len(other) == 8
    assert len(set(texts)) == 16


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1, 2**256 - 1])
async def test_any_non_negative_seed_is_taken(running: RunningEngine, seed: int) -> None:
    assert len(await generate(running, question(running), Sampling(max_tokens=2), n=2, seed=seed)) == 2


async def test_a_completion_ends_at_its_first_end_token_or_at_max_tokens(running: RunningEngine) -> None:
    eos = set(running.facts.eos_token_ids)
    sampling = Sampling(max_tokens=40, temperature=2.0)
    groups = await asyncio.gather(*(generate(running, question(running, i), sampling, n=64, seed=i) for i in range(6)))
    samples = [sample for group in groups for sample in group]
    seen = set()
    for sample in samples:
        if sample.finish_reason == "stop":
            assert sample.token_ids[-1] in eos
            assert not eos & set(sample.token_ids[:-1])
            seen.add(sample.token_ids[-1])
        else:
            assert len(sample.token_ids) == 40
            assert not eos & set(sample.token_ids)
        assert not any(mark in sample.text for mark in ("</s>", "<|im_end|>", "<|endoftext|>"))
    assert seen == eos
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}


async def test_one_token_is_enough(running: RunningEngine) -> None:
    samples = await generate(running, question(running), Sampling(max_tokens=1), n=5)
    assert [len(sample.token_ids) for sample in samples] == [1] * 5


async def test_text_is_what_the_tokens_say(running: RunningEngine) -> None:
    if running.architecture == "llama":  # one token a character
        (sample,) = await generate(running, question(running), Sampling(max_tokens=20), seed=3)
        characters = [chr(32 + token - 4) if token < 99 else "\n" for token in sample.token_ids if token >= 4]
        assert sample.text == "".join(characters)


async def test_a_cancelled_request_leaves_the_others_alone(running: RunningEngine) -> None:
    prompt = question(running)
    wanted = [sample.token_ids for sample in await generate(running, prompt, GREEDY)]
    doomed = asyncio.create_task(generate(running, prompt, Sampling(max_tokens=200), n=64))
    kept = asyncio.create_task(generate(running, prompt, GREEDY))
    await running.engine.probe()  # both are under way
    doomed.cancel()
    await asyncio.wait([doomed])
    assert doomed.cancelled()
    assert [sample.token_ids for sample in await kept] == wanted


async def test_the_probe_answers_beside_a_full_batch(running: RunningEngine) -> None:
    busy = asyncio.create_task(generate(running, question(running), Sampling(max_tokens=100), n=100))
    await running.engine.probe()
    assert len(await busy) == 100


async def test_a_living_engine_has_not_died(running: RunningEngine) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(running.engine.died(), 0.01)
    await running.engine.probe()


# Weights --------------------------------------------------------------------------------------------------------------


async def assert_serves(running: RunningEngine, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
    """Greedy tokens and log-probabilities are those of a fresh model with these weights."""
    reference = Reference(running.checkpoint, tensors)
    for number in (7, 8):
        prompt = question(running, number)
        (greedy,) = await generate(running, prompt, GREEDY)
        assert greedy.token_ids == reference.greedy(prompt, 12, running.facts.eos_token_ids)
        for sample in await generate(running, prompt, Sampling(max_tokens=12), n=2):
            assert reference.error(prompt, sample, Sampling()) < TOLERANCE


async def test_new_weights_are_served_twice_in_a_row(running: RunningEngine) -> None:
    await assert_serves(running)
    for seed in (1, 2):
        tensors = perturbed(running.tensors, seed)
        tag = await running.load(tensors)
        assert running.engine.version == tag
        await assert_serves(running, tensors)


async def test_only_the_output_embedding_changes(running: RunningEngine) -> None:
    """Where it is tied, no snapshot holds it: the change comes with the input embedding."""
    name = "lm_head.weight" if running.architecture == "llama" else "model.embed_tokens.weight"
    tensors = running.tensors
    tensors[name] = perturbed({name: tensors[name]}, 5, 0.2)[name]
    await running.load(tensors)
    await assert_serves(running, tensors)


async def test_cached_prompts_are_not_remembered_across_weights(running: RunningEngine) -> None:
    prompt = (question(running) * 8)[:100]  # three blocks of 32 and a rest
    for seed in (1, 2):
        await generate(running, prompt, GREEDY)
        tensors = perturbed(running.tensors, seed)
        await running.load(tensors)
        (sample,) = await generate(running, prompt, GREEDY)
        reference = Reference(running.checkpoint, tensors)
        assert sample.token_ids == reference.greedy(prompt, 12, running.facts.eos_token_ids)
        assert reference.error(prompt, sample, GREEDY) < TOLERANCE


async def test_shards_and_a_tied_duplicate_make_no_difference(running: RunningEngine) -> None:
    tensors = perturbed(running.tensors, 3)
    stored = dict(tensors)
    if running.architecture == "qwen":
        stored["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    await running.load(stored, shards=3)
    await assert_serves(running, tensors)


async def test_half_precision_is_cast(running: RunningEngine) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in perturbed(running.tensors, 4).items()}
    await running.load(tensors)
    await assert_serves(running, {name: tensor.float() for name, tensor in tensors.items()})


def _missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def _unknown(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(3)


def _wrong_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(65)


def _wrong_dtype(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int64)


def _not_finite(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.input_layernorm.weight"] *= torch.nan


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_missing, "lacks tensor 'model.layers.1.mlp.up_proj.weight'"),
        (_unknown, "unknown tensor 'model.layers.2.mlp.up_proj.weight'"),
        (_wrong_shape, r"'model.norm.weight' has shape \[65\], the model's is \[64\]"),
        (_wrong_dtype, "'model.norm.weight' is I64"),
        (_not_finite, "not finite"),
    ],
)
async def test_a_bad_snapshot_leaves_the_old_weights_serving(
    running: RunningEngine, spoil: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    old = perturbed(running.tensors, 6)
    tag = await running.load(old)
    bad = perturbed(running.tensors, 7)
    spoil(bad)
    with pytest.raises(WeightsRejected, match=message):
        await running.load(bad)
    assert running.engine.version == tag
    await assert_serves(running, old)
    good = perturbed(running.tensors, 8)
    await running.load(good)
    await assert_serves(running, good)


async def test_a_bad_first_snapshot_leaves_the_checkpoint_serving(running: RunningEngine) -> None:
    bad = perturbed(running.tensors, 7)
    _not_finite(bad)
    with pytest.raises(WeightsRejected):
        await running.load(bad)
    assert running.engine.version == running.facts.weights
    await assert_serves(running)


async def test_a_flipped_bit_is_found(running: RunningEngine) -> None:
    snapshot, tag = running.publish(perturbed(running.tensors, 9))
    content = bytearray(snapshot.files()[0].read_bytes())
    content[-5] ^= 1
    snapshot.files()[0].write_bytes(content)
    reopened = open_snapshot(str(snapshot.folder), running.weights)
    with pytest.raises(WeightsRejected, match="digest"):
        await running.engine.load_weights(reopened, tag)
    await assert_serves(running)


async def test_a_snapshot_that_vanished_is_rejected(running: RunningEngine) -> None:
    snapshot, tag = running.publish(perturbed(running.tensors, 10))
    shutil.rmtree(snapshot.folder)
    with pytest.raises(WeightsRejected):
        await running.engine.load_weights(snapshot, tag)
    await assert_serves(running)


async def test_a_tied_duplicate_with_other_content_is_rejected(running: RunningEngine) -> None:
    if running.architecture == "qwen":
        tensors = perturbed(running.tensors, 11)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
        with pytest.raises(WeightsRejected, match="the model ties them"):
            await running.load(tensors)
        await assert_serves(running)


async def test_another_models_snapshot_is_rejected(
    running: RunningEngine, llama_checkpoint: Path, qwen_checkpoint: Path, tmp_path: Path
) -> None:
    other = qwen_checkpoint if running.architecture == "llama" else llama_checkpoint
    snapshot = publish(tmp_path, stored_tensors(other))
    with pytest.raises(WeightsRejected):
        await running.engine.load_weights(snapshot, running.facts.weights)
    await assert_serves(running)


async def test_weights_survive_the_deletion_of_their_snapshot(running: RunningEngine) -> None:
    tensors = perturbed(running.tensors, 12)
    snapshot, tag = running.publish(tensors)
    await running.engine.load_weights(snapshot, tag)
    shutil.rmtree(snapshot.folder)
    await assert_serves(running, tensors)


async def test_relabelling_loads_nothing(running: RunningEngine) -> None:
    tag = running.engine.version.model_copy(update={"incarnation": 4, "version": 9})
    running.engine.relabel(tag)
    assert running.engine.version == tag
    await assert_serves(running)


async def test_a_caller_that_gives_up_does_not_leave_half_a_load(running: RunningEngine) -> None:
    tensors = perturbed(running.tensors, 13)
    snapshot, tag = running.publish(tensors)
    loading = asyncio.create_task(running.engine.load_weights(snapshot, tag))
    await asyncio.sleep(0.002)
    loading.cancel()
    await asyncio.wait([loading])
    await running.load(running.tensors)  # waits for what was begun
    await assert_serves(running)
