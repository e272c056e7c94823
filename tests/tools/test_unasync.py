"""The blocking client is made from the asynchronous one."""

from __future__ import annotations

import inspect

import pytest

from penstock import client
from penstock.client.transports import aio, blocking
from tools import unasync

PAIRS = [name.removeprefix("Async") for name in client.__all__ if name.startswith("Async")]


def test_the_generated_client_is_in_step(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["unasync", "--check"])
    assert unasync.main() == 0, f"{capsys.readouterr().out}run `make generate`"


def test_a_module_that_is_not_in_step_is_named_and_written_anew(tmp_path, monkeypatch, capsys):
    source, target = tmp_path / "aio", tmp_path / "blocking"
    source.mkdir()
    target.mkdir()
    (source / "one.py").write_text("async def one() -> None:\n    await two()\n")
    (target / "left_over.py").write_text("")
    for name, value in (("ROOT", tmp_path), ("SOURCE", source), ("TARGET", target)):
        monkeypatch.setattr(unasync, name, value)
    monkeypatch.setattr("sys.argv", ["unasync", "--check"])
    assert unasync.main() == 1
    assert "blocking/one.py: not in step" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["unasync"])
    assert unasync.main() == 0
    assert [path.name for path in target.iterdir()] == ["one.py"]
    header, *code = (target / "one.py").read_text().splitlines()
    assert header.startswith("# Generated from ../aio/one.py")
    assert [line for line in code if line] == ["def one() -> None:", "    two()"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("async with a as b:", "with a as b:"),
        ("x = (await f(1)).y", "x = (f(1)).y"),
        ("[p async for p in AsyncPages()]", "[p for p in Pages()]"),
        ("ask: Callable[[], Coroutine[Any, Any, T]]", "ask: Callable[[], T]"),
        ("async def __aexit__(self)", "def __exit__(self)"),
        ("import penstock.client.aio.work", "import penstock.client.blocking.work"),
        ("raise StopAsyncIteration", "raise StopIteration"),
        ("an asynchronous asyncio", "an asynchronous asyncio"),
    ],
)  # fmt: skip
def test_what_is_replaced(text, found):
    assert unasync.unasynced(text) == found


@pytest.mark.parametrize("name", PAIRS)
def test_both_colours_have_the_same_methods_with_the_same_arguments(name):
    ours, theirs = getattr(client, f"Async{name}"), getattr(client, name)
    assert signatures(ours) == signatures(theirs)


@pytest.mark.parametrize("name", ["Transport", "Connection", "Attempt", "Signal"])
def test_what_is_written_by_hand_has_the_methods_that_generated_code_calls(name):
    """mypy checks the arguments; here, that neither has what the other could not have."""
    ours, theirs = getattr(aio, f"Async{name}"), getattr(blocking, name)
    used = {
        "exchange",
        "stream",
        "pause",
        "close",
        "read",
        "over",
        "result",
        "drop",
        "call",
        "tell",
    }
    assert {each for each in used if hasattr(ours, each)} == {
        each for each in used if hasattr(theirs, each)
    }


def signatures(kind: type) -> dict[str, list[str]]:
    return {
        unasync.unasynced(name): [str(each) for each in inspect.signature(member).parameters]
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
