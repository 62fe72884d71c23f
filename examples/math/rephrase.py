"""Write the `rephrased` view of a cohort's problems: other words, same meaning, same problem ids.

    python examples/math/rephrase.py examples/math/same-family.yaml --endpoint http://127.0.0.1:8000/v1 --model NAME

Asks any OpenAI-compatible endpoint (a `vllm serve`, say; key in OPENAI_API_KEY if it wants one) for a paraphrase of
each training problem and appends it to `problems.rephrased.jsonl` beside the cohort file. Start it again and it goes on
where it stopped. No answer is read. A rephrasing that loses a number of the original is dropped for the original text:
a view must not change the problem.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from corl.cohort import load_cohort, load_problems

REQUEST = (
    "Rewrite this problem in other words. Keep every number, symbol and condition, and what is asked for. "
    "Do not solve it. Reply with the new text alone.\n\n{problem}"
)


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?", text))


def rephrase(client: httpx.Client, model: str, problem: str) -> str:
    message = {"role": "user", "content": REQUEST.format(problem=problem)}
    reply = client.post("chat/completions", json={"model": model, "messages": [message], "temperature": 0.7})
    reply.raise_for_status()
    text: str = reply.json()["choices"][0]["message"]["content"].strip()
    return text if text and numbers(problem) <= numbers(text) else problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--endpoint", required=True, help="base URL, ending in /v1")
    parser.add_argument("--model", required=True, help="the endpoint's name of the model")
    parser.add_argument("--parallel", type=int, default=32)
    args = parser.parse_args()

    problems = load_problems(load_cohort(args.cohort))
    out = args.cohort.parent / "problems.rephrased.jsonl"
    done = {json.loads(line)["problem_id"] for line in out.read_text().splitlines()} if out.exists() else set()
    missing = [problem_id for problem_id in problems.ids if problem_id not in done]
    headers = {"Authorization": f"Bearer {key}"} if (key := os.environ.get("OPENAI_API_KEY")) else {}
    transport = httpx.HTTPTransport(retries=3)
    kept = 0
    with (
        httpx.Client(base_url=args.endpoint, headers=headers, timeout=300, transport=transport) as client,
        ThreadPoolExecutor(args.parallel) as pool,
        out.open("a") as file,
    ):
        texts = pool.map(lambda i: rephrase(client, args.model, problems.text(i, "original")), missing)
        for problem_id, text in zip(missing, texts, strict=True):
            kept += text == problems.text(problem_id, "original")
            file.write(json.dumps({"problem_id": problem_id, "problem": text}, ensure_ascii=False) + "\n")
            file.flush()
    print(f"{out}: {len(missing)} problems written, {kept} of them in their original words")


if __name__ == "__main__":
    main()
