"""Sends two pictures to a running deployment: were they answered, and from embeddings that E encoded?

python -m examples.deploy.check http://127.0.0.1:8000 NAMESPACE
"""

from __future__ import annotations

import sys

from ec_ipc.cli import status
from examples.demo.chat import chat, picture


def counters(namespace: str) -> dict[str, int]:
    """The namespace's counters."""
    (found,) = status.collect(namespace)["namespaces"]
    return dict(found["counters"])


def main() -> int:
    url, namespace = sys.argv[1:]
    before = counters(namespace)
    answer = chat(url, [picture(1), picture(2)], max_tokens=8)
    after = counters(namespace)
    published, reads, misses = (after[n] - before[n] for n in ("published", "reads", "misses"))
    print(f"answer: HTTP {answer.status}, {len(answer.tokens)} tokens")
    print(f"shared: {published} embeddings published, {reads} read in place, {misses} missed")
    return 0 if answer.ok and answer.tokens and published == reads == 2 and misses == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
