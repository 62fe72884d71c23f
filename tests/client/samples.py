"""Right requests and right answers, to be spoilt one thing at a time."""

from __future__ import annotations

from typing import Any

from corl import wire

TAG = {"incarnation": 1, "version": 3, "digest": "d3"}
VOTE = {
    "status": "ok",
    "answer": "4",
    "key": "q:4",
    "keys": ["q:4"],
    "count": 2,
    "parsed": 2,
    "total": 2,
    "share": 1.0,
}

ROLLOUTS = wire.RolloutsRequest(
    problems=[wire.Problem(problem_id="p1", prompt=[1, 2, 3]), wire.Problem(problem_id="p2", prompt="What is 2+2?")],
    n=2,
    run="r",
    step=3,
)
SCORES = wire.ScoresRequest(
    items=[
        wire.ScoreItem(id="a", problem_id="p1", prompt="What is 2+2?", completions=["\\boxed{4}", "\\boxed{5}"]),
        wire.ScoreItem(id="b", problem_id="p2", prompt="What is 1+1?", completions=["\\boxed{2}"]),
    ],
    run="r",
    step=3,
)
WEIGHTS = wire.WeightsUpdate(run="r", incarnation=1, version=4, digest="d4", uri="r/a/v4")


def tag(version: int, incarnation: int = 1, digest: str | None = None) -> dict[str, Any]:
    return {"incarnation": incarnation, "version": version, "digest": digest or f"d{incarnation}.{version}"}


def completion() -> dict[str, Any]:
    return {
        "token_ids": [7, 8],
        "logprobs": [-0.5, -0.25],
        "text": "\\boxed{4}",
        "finish_reason": "stop",
        "answer": "4",
    }


def rollouts(**changes: Any) -> dict[str, Any]:
    problems = [
        {
            "problem_id": name,
            "prompt_token_ids": [1, 2, 3],
            "completions": [completion(), completion()],
            "vote": dict(VOTE),
            "weights": changes.get("weights", TAG),
        }
        for name in ("p1", "p2")
    ]
    return {"member": "b", "run": "r", "step": 3, "problems": problems, "weights": TAG, **changes}


def scores(**changes: Any) -> dict[str, Any]:
    items = [
        {
            "id": "a",
            "problem_id": "p1",
            "status": "scored",
            "rewards": [1.0, 0.0],
            "answers": ["4", "5"],
            "vote": dict(VOTE),
        },
        {
            "id": "b",
            "problem_id": "p2",
            "status": "unlabeled",
            "answers": ["2"],
            "vote": {"status": "none", "total": 2},
        },
    ]
    return {"member": "b", "run": "r", "step": 3, "items": items, "weights": TAG, **changes}


def job(status: str = "done", **changes: Any) -> dict[str, Any]:
    body = {"id": "j1", "kind": "rollouts", "status": status, "done": 2, "total": 2, "created_at": 0.0}
    return body | ({"result": rollouts()} if status == "done" else {}) | changes


def model() -> dict[str, Any]:
    return {
        "member": "b",
        "model": "m",
        "revision": None,
        "frozen": False,
        "tokenizer": {"vocab_size": 16, "eos_token_ids": [1], "chat_template": False},
        "weights": TAG,
        "engine": "scripted",
        "engine_version": "1",
        "limits": {
            "max_model_len": 64,
            "max_items": 64,
            "max_completions": 64,
            "max_samples": 64,
            "max_body_bytes": 1 << 20,
        },
    }
