"""Command line: `python examples/proxy --encoder URL --pd URL`, or `python -m proxy` in examples/."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from urllib.parse import urlsplit

if not __package__:  # run as a directory: its parent is where `proxy` is found
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

GRACE_S = 10  # how long open answers may go on after SIGINT or SIGTERM


def engine_url(text: str) -> str:
    """An engine's address without a path, e.g. http://127.0.0.1:8001."""
    url = text.rstrip("/")
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path or parts.query:
        raise argparse.ArgumentTypeError(f"{text!r} is not an engine's address like http://127.0.0.1:8001")
    return url


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="proxy", description="OpenAI chat completions over encoder (E) and prefill+decode (PD) engines."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--encoder",
        type=engine_url,
        action="append",
        required=True,
        metavar="URL",
        help="an E engine; repeatable",
    )
    parser.add_argument(
        "--pd", type=engine_url, action="append", required=True, metavar="URL", help="a PD engine; repeatable"
    )
    parser.add_argument(
        "--no-rewrite",
        dest="rewrite",
        action="store_false",
        help="send PD the media too, not only its metadata",
    )
    parser.add_argument(
        "--no-fallback",
        dest="fallback",
        action="store_false",
        help="when no encoder can encode an item, answer with an error instead of having PD encode it",
    )
    parser.add_argument(
        "--no-url-reuse",
        dest="reuse_urls",
        action="store_false",
        help="give media named by a remote URL a new key in every request: what is behind the URL may change",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=600.0,
        metavar="S",
        help="seconds an encoder has for its answer, and PD for its next byte (default 600)",
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parsed = parser.parse_args(arguments)
    for name in ("encoder", "pd"):
        urls = getattr(parsed, name)
        if len(set(urls)) < len(urls):
            parser.error(f"--{name} names the same address twice")
    return parsed


def main() -> None:
    arguments = parse_arguments()
    try:
        import uvicorn

        from proxy.app import Settings, create_app
    except ImportError as error:
        sys.exit(f"The proxy needs fastapi, uvicorn and aiohttp, which come with vLLM: {error}")
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    settings = Settings(
        encoders=tuple(arguments.encoder),
        pds=tuple(arguments.pd),
        rewrite=arguments.rewrite,
        fallback=arguments.fallback,
        reuse_urls=arguments.reuse_urls,
        timeout_s=arguments.timeout,
    )
    uvicorn.run(
        create_app(settings),
        host=arguments.host,
        port=arguments.port,
        log_level=arguments.log_level,
        log_config=None,
        timeout_graceful_shutdown=GRACE_S,
    )


if __name__ == "__main__":
    main()
