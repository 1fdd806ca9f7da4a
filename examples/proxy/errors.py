"""The errors a client can see: a status and a sentence that says which engine said what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONGEST_QUOTE = 2000
# Refusals that may come of a request that was begun: it took too long, or its client left.
MAYBE_TAKEN = (408, 499)


class ProxyError(Exception):
    """Ends a request with `status` and `sentence`; `kind` is the OpenAI error type."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        kind: str = "proxy_error",
        param: str | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.kind = kind
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": self.sentence, "type": self.kind, "param": self.param, "code": self.status}
        }


class EngineFailure(Exception):
    """One engine did not do what it was asked; `status` is what the client would get for it.

    `answer` is what the engine said, in its own words; when it did not answer (`answered` False),
    what happened instead, as the rest of a sentence. `retryable`: the same may work after another
    encode. `not_taken`: the engine has certainly not begun with the request, nor will it.
    """

    def __init__(
        self,
        role: str,
        url: str,
        status: int,
        answer: str,
        *,
        answered: bool = True,
        retryable: bool = False,
        not_taken: bool = False,
        kind: str = "proxy_error",
        param: str | None = None,
        retry_after: str | None = None,
    ) -> None:
        self.role = role
        self.url = url
        self.status = status
        self.answer = answer
        self.answered = answered
        self.retryable = retryable
        self.not_taken = not_taken
        self.kind = kind
        self.param = param
        self.retry_after = retry_after
        super().__init__(self.sentence())

    def sentence(self) -> str:
        return f"{self.role} {self.url} {self.what_happened()}"

    def what_happened(self) -> str:
        return f"answered {self.status}: {self.answer}" if self.answered else self.answer

    @classmethod
    def no_answer(
        cls, role: str, url: str, status: int, what: str, error: Exception | None = None, **options: Any
    ) -> EngineFailure:
        reason = f": {str(error) or type(error).__name__}" if error is not None else ""
        return cls(role, url, status, what + reason, answered=False, **options)

    @classmethod
    def from_answer(
        cls, role: str, url: str, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> EngineFailure:
        """From an HTTP answer with an error status. OpenAI-style bodies are read, others quoted."""
        message, kind, param = read_error(body)
        retry_after = (headers or {}).get("Retry-After")
        return cls(
            role,
            url,
            status,
            message,
            kind=kind,
            param=param,
            retry_after=retry_after,
            retryable=status >= 500,
            not_taken=400 <= status < 500 and status not in MAYBE_TAKEN,
        )

    def as_error(self, sentence: str | None = None) -> ProxyError:
        return ProxyError(
            self.status,
            sentence or self.sentence(),
            kind=self.kind,
            param=self.param,
            retry_after=self.retry_after,
        )


def read_error(body: bytes) -> tuple[str, str, str | None]:
    """(message, type, param) of an error body of whatever form."""
    text = body.decode("utf-8", errors="replace").strip()
    try:
        parsed = json.loads(text)
    except ValueError:
        return text[:LONGEST_QUOTE] or "(no text)", "proxy_error", None
    return read_error_object(parsed)


def read_error_object(parsed: Any) -> tuple[str, str, str | None]:
    if not isinstance(parsed, dict):
        return str(parsed)[:LONGEST_QUOTE], "proxy_error", None
    error = parsed.get("error", parsed)
    if not isinstance(error, dict):
        return str(error)[:LONGEST_QUOTE], "proxy_error", None
    message = error.get("message", error.get("detail"))
    kind, param = error.get("type"), error.get("param")
    return (
        str(message if message is not None else error)[:LONGEST_QUOTE],
        kind if isinstance(kind, str) else "proxy_error",
        param if isinstance(param, str) else None,
    )
