from __future__ import annotations

from penstock.kernel.text import shortened

LONG = "\n".join(f'  File "/opt/task_{number}.py", line {number}' for number in range(200))


def test_a_long_error_keeps_its_last_line() -> None:
    text = f"Job aborted:\nTraceback\n{LONG}\nModuleNotFoundError: No module named 'penstock'\n\n"
    found = shortened(text, 200)
    assert found.startswith("Job aborted: Traceback File")
    assert found.endswith(" … ModuleNotFoundError: No module named 'penstock'")
    assert len(found) <= 200


def test_frames_of_java_are_not_for_people() -> None:
    text = (
        "it broke\n\tat org.apache.spark.A.b(C.scala:1)\n\t... 12 more\nDriver stacktrace:\nfor x"
    )
    assert shortened(text) == "it broke for x"


def test_a_short_text_is_only_put_on_one_line() -> None:
    assert shortened("a\n  b\n") == "a b"
    assert shortened("") == ""


def test_a_last_line_that_is_too_long_is_cut_too() -> None:
    assert len(shortened("a\n" + "b" * 5_000, 100)) <= 100
