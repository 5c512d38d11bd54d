"""llmrun tokenize, detokenize and template, run as the real program on small files."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strata_cli.main import main
from tests.support.chat_templates import STRICT
from tests.support.program import Result, environment
from tests.support.text_vocabularies import small_metadata

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three vocabulary files in it."""
    folder = tmp_path_factory.mktemp("home")
    keys = small_metadata(eos_token_id=2, bos_token_id=0, add_bos_token=True)
    write_gguf(folder / "m.gguf", {**keys, "tokenizer.chat_template": STRICT})
    write_gguf(folder / "loses.gguf", {**keys, "tokenizer.chat_template": "{{ messages[0].content[:3] }}"})
    write_gguf(folder / "bare.gguf", {"tokenizer.ggml.model": "none"})
    return folder


def write_gguf(path: Path, metadata: dict) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}[
            type(value)
        ]
        add(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.fixture
def llmrun(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process: argv to exit code, with an environment and standard input of its own."""
    monkeypatch.chdir(home)
    for name, value in environment(home).items():
        monkeypatch.setenv(name, value)

    def run(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        before = signal.getsignal(signal.SIGTERM)
        code = main(list(args))
        signal.signal(signal.SIGTERM, before)
        shown = capsys.readouterr()
        return Result(code, shown.out, shown.err)

    return run


def child(home: Path, *args: str, stdin: bytes = b"") -> Result:
    """The same as a program of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "strata_cli", *args], env=environment(home), cwd=home, input=stdin, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_tokenize_shows_a_token_a_line_with_id_and_escaped_bytes(llmrun: Run):
    shown = llmrun("tokenize", "./m.gguf", 'the "é\n\\')
    assert (shown.code, shown.err) == (0, "")
    rows = [line.split(None, 1) for line in shown.out.splitlines()]
    assert [text for _, text in rows] == [
        '"<|endoftext|>"', '"the"', '" "', '"\\""', '"\\xc3"', '"\\xa9"', '"\\n"', '"\\\\"',
    ]  # fmt: skip
    assert rows[0][0] == "0"


def test_tokenize_reads_standard_input_and_files(home: Path, llmrun: Run):
    (home / "text.txt").write_text("the")
    expected = llmrun("tokenize", "./m.gguf", "--ids", "the").out
    assert llmrun("tokenize", "./m.gguf", "--ids", stdin=b"the").out == expected
    assert llmrun("tokenize", "./m.gguf", "--ids", "-", stdin=b"the").out == expected
    assert llmrun("tokenize", "./m.gguf", "--ids", "--file", "text.txt").out == expected


def test_tokenize_adds_no_bos_with_no_special(llmrun: Run):
    assert json.loads(llmrun("tokenize", "./m.gguf", "--ids", "--no-special", "the").out)[0] != 0
    assert llmrun("tokenize", "./m.gguf", "--count", "the").out == "2\n"
    assert llmrun("tokenize", "./m.gguf", "--count", "--no-special", "the").out == "1\n"


def test_tokenize_never_adds_a_second_bos(llmrun: Run):
    shown = llmrun("tokenize", "./m.gguf", "--ids", "--parse-special", "<|endoftext|>the")
    assert json.loads(shown.out).count(0) == 1


def test_tokenize_takes_control_tokens_as_text_unless_told(llmrun: Run):
    assert 2 not in json.loads(llmrun("tokenize", "./m.gguf", "--ids", "<|im_end|>").out)
    assert json.loads(llmrun("tokenize", "./m.gguf", "--ids", "--parse-special", "<|im_end|>").out) == [0, 2]


def test_tokenize_as_json_gives_bytes(llmrun: Run):
    shown = json.loads(llmrun("tokenize", "./m.gguf", "--json", "é").out)
    assert (shown["schema"], shown["count"]) == ("llmrun.tokenize.v1", 3)
    assert [t["bytes"] for t in shown["tokens"][1:]] == [[0xC3], [0xA9]]
    assert [t["control"] for t in shown["tokens"]] == [True, False, False]


def test_the_program_itself_does_the_same(home: Path, llmrun: Run):
    args = ("tokenize", "./m.gguf", "--parse-special")
    assert child(home, *args, stdin="thé<|im_end|>".encode()) == llmrun(*args, stdin="thé<|im_end|>".encode())
    assert child(home, "template", "./loses.gguf", "--check").code == 10


def test_detokenize_undoes_tokenize(llmrun: Run):
    ids = llmrun("tokenize", "./m.gguf", "--ids", "--no-special", "the é 😀").out
    assert llmrun("detokenize", "./m.gguf", stdin=ids.encode()).out == "the é 😀\n"
    assert llmrun("detokenize", "./m.gguf", *ids.split()).out == "the é 😀\n"
    assert json.loads(llmrun("detokenize", "./m.gguf", "--json", "2").out)["text"] == "<|im_end|>"


def test_template_shows_the_prompt(home: Path, llmrun: Run):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    (home / "messages.json").write_text(json.dumps(messages))
    shown = llmrun("template", "./m.gguf", "--messages", "messages.json")
    assert shown.out == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    piped = llmrun("template", "./m.gguf", "--messages", "-", stdin=json.dumps({"messages": messages}).encode())
    assert piped.out == shown.out


def test_template_flags_change_the_prompt(home: Path, llmrun: Run):
    assert llmrun("template", "./m.gguf", "--no-generation-prompt").out.endswith("<|im_end|>\n")
    assert llmrun("template", "./m.gguf", "--think=none").out.endswith("<think>\n\n</think>\n\n")
    assert llmrun("template", "./m.gguf", "--think").out.endswith("<think>\n")
    (home / "tools.json").write_text(json.dumps([{"type": "function", "function": {"name": "get_weather"}}]))
    assert "get_weather" in llmrun("template", "./m.gguf", "--tools", "tools.json").out


def test_template_as_json_gives_ids_and_state(llmrun: Run):
    shown = json.loads(llmrun("template", "./m.gguf", "--json").out)
    assert (shown["state"], shown["stop_ids"], shown["ids"][:2]) == ("thinking", [0, 2], [0, 1])


def test_template_check_passes_with_a_good_template(llmrun: Run):
    shown = llmrun("template", "./m.gguf", "--check")
    assert (shown.code, shown.err) == (0, "")
    assert "FAIL" not in shown.out


def test_template_check_fails_with_exit_code_10(llmrun: Run):
    shown = llmrun("template", "./loses.gguf", "--check")
    assert shown.code == 10
    assert "two-system" in shown.out
    assert "FAIL" in shown.out
    assert "error: " in shown.err
    assert llmrun("template", "./loses.gguf", "--check", "--json").code == 10


def test_an_invalid_template_file_is_named_with_line_and_column(home: Path, llmrun: Run):
    (home / "bad.jinja").write_text("{% if x %}")
    shown = llmrun("template", "./m.gguf", "--chat-template", "bad.jinja")
    assert shown.code == 2
    assert "line 1, column 4" in shown.err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["tokenize", "nosuchmodel", "x"], 3, "nosuchmodel"),
        (["tokenize", "./absent.gguf", "x"], 3, "absent.gguf"),
        (["tokenize", "./bare.gguf", "x"], 2, "no tokenizer"),
        (["tokenize", "./m.gguf", "--file", "absent.txt"], 3, "absent.txt"),
        (["tokenize", "./m.gguf", "--file", "messages.bin"], 2, "not UTF-8"),
        (["tokenize", "./m.gguf", "--ids", "--count", "x"], 2, "contradict"),
        (["detokenize", "./m.gguf", "999999"], 2, "outside the vocabulary"),
        (["detokenize", "./m.gguf", "x1"], 2, "'x1'"),
        (["template", "./m.gguf", "--messages", "broken.json"], 2, "not valid JSON"),
        (["template", "./m.gguf", "--messages", "role.json"], 2, "narrator"),
        (["template", "./m.gguf", "--tools", "role.json"], 2, "has no function"),
        (["template", "./m.gguf", "--think=enormous"], 2, "enormous"),
        (["template", "./m.gguf", "--check", "--tools", "role.json"], 2, "--check"),
    ],
)
def test_wrong_input_is_one_clear_error(home: Path, llmrun: Run, args: list[str], code: int, says: str):
    (home / "messages.bin").write_bytes(b"\xff\xfe")
    (home / "broken.json").write_text("{")
    (home / "role.json").write_text('[{"role": "narrator", "content": "x"}]')
    shown = llmrun(*args)
    assert shown.code == code
    assert says in shown.err
    assert "Traceback" not in shown.err
    assert shown.err.count("error: ") == 1


def test_the_commands_import_neither_torch_nor_numpy(home: Path):
    program = (
        "import sys; from strata_cli.main import main; code = main(['template', './m.gguf', '--check', '-q']); "
        "sys.stderr.write(repr((code, [m for m in ('torch', 'numpy', 'starlette') if m in sys.modules])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(home), cwd=home, capture_output=True, check=False
    )
    assert done.stderr.decode() == "(0, [])"
