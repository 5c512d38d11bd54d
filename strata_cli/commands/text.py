"""tokenize, detokenize, template: a model's text rules at work. They need the model's files, no torch, no engine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata_cli.app import App
from strata_cli.model_text import LoadedText, load_text, read_stdin, read_text
from strata_cli.request_files import read_request
from strata_cli.talkflags import ThinkCommand
from strata_engine.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from strata_engine.text.check import Outcome
    from strata_engine.text.tokenizer import BpeTokenizer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model: a name, or the path of a file or directory")]


def tokenize(
    context: typer.Context,
    model: Model,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]", help="Text; without it, or as -, standard input")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the text from a file")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Only the ids, as a list on one line")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only the number of tokens")] = False,
    no_special: Annotated[
        bool, typer.Option("--no-special", help="No BOS in front, also where the model wants it")
    ] = False,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Control tokens spelled in the text become their ids")
    ] = False,
) -> int:
    """Show how a text is split into tokens: one a line, with its id and its bytes."""
    app = App.of(context)
    if ids and count:
        raise UsageError("--ids and --count contradict each other")
    content = _content(text, file)
    tokenizer = load_text(app, model).tokenizer
    found = tokenizer.encode(content, special=parse_special)
    if tokenizer.add_bos and tokenizer.bos_id is not None and not no_special and found[:1] != [tokenizer.bos_id]:
        found.insert(0, tokenizer.bos_id)
    if app.output.json_mode:
        app.output.data("llmrun.tokenize.v1", _tokenized(tokenizer, found, only_ids=ids, only_count=count))
    elif count:
        app.output.line(str(len(found)))
    elif ids:
        app.output.line(json.dumps(found))
    else:
        app.output.table((), [[str(i), escaped(tokenizer.piece(i))] for i in found], right=(0,))
    return 0


def detokenize(
    context: typer.Context,
    model: Model,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]", help="Token ids; without them, or as -, standard input")
    ] = None,
) -> int:
    """Turn token ids back into text, control tokens spelled out.

    Ids may be separated by blanks or commas, and stand in brackets as `tokenize --ids` prints them.
    """
    app = App.of(context)
    wanted = _ids(_content(ids, None))
    tokenizer = load_text(app, model).tokenizer
    beyond = [i for i in wanted if i >= tokenizer.vocab_size]
    if beyond:
        raise UsageError(f"token id {beyond[0]} is outside the vocabulary (0 to {tokenizer.vocab_size - 1})")
    text = tokenizer.decode(wanted)
    if app.output.json_mode:
        app.output.data("llmrun.detokenize.v1", {"text": text, "ids": wanted})
    else:
        app.output.line(text)
    return 0


template = typer.Typer(add_completion=False, rich_markup_mode=None)


@template.command("template", cls=ThinkCommand)
def show_template(
    context: typer.Context,
    model: Model,
    messages: Annotated[
        str | None,
        typer.Option("--messages", metavar="FILE", help="Messages as JSON, in OpenAI's form (- = standard input)"),
    ] = None,
    tools: Annotated[
        str | None, typer.Option("--tools", metavar="FILE", help="Tools as JSON, in OpenAI's form")
    ] = None,
    no_generation_prompt: Annotated[
        bool, typer.Option("--no-generation-prompt", help="Do not open the assistant's turn")
    ] = False,
    think: Annotated[
        str | None, typer.Option("--think", metavar="[=low|medium|high|none]", help="Switch the model's thinking")
    ] = None,
    chat_template: Annotated[
        str | None, typer.Option("--chat-template", metavar="FILE", help="Chat template in place of the model's own")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Try odd conversations; exit code 10 if one fails")] = False,
) -> int:
    """Show the prompt a conversation becomes; without --messages that of one short question."""
    app = App.of(context)
    if check and (messages or tools):
        raise UsageError("--check brings its own conversations: no --messages, no --tools")
    request = None if check else read_request(messages, tools, think)
    loaded = load_text(app, model, read_text(chat_template) if chat_template else None)
    if request is None:
        return _check(app, model, loaded)
    rendered = loaded.chat.render(request, generation_prompt=not no_generation_prompt)
    for notice in rendered.notices:
        app.output.warn(notice.message)
    if app.output.json_mode:
        app.output.data(
            "llmrun.template.v1",
            {
                "prompt": rendered.text,
                "ids": list(rendered.ids),
                "state": rendered.state,
                "stop_ids": sorted(rendered.stop_ids),
                "notices": [{"code": n.code, "message": n.message} for n in rendered.notices],
            },
        )
    else:
        app.output.write(rendered.text if rendered.text.endswith("\n") else rendered.text + "\n")
        app.output.detail(f"{len(rendered.ids)} tokens; the reply starts in state {rendered.state}")
    return 0


def escaped(data: bytes) -> str:
    """Bytes in quotes: readable characters as they are, the rest as \\n, \\t or \\xNN."""
    text = data.decode("utf-8", "backslashreplace") if b"\\" not in data else _with_backslashes(data)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"'}
    shown = (named.get(c) or (c if c.isprintable() else "".join(f"\\x{b:02x}" for b in c.encode())) for c in text)
    return '"' + "".join(shown) + '"'


def _with_backslashes(data: bytes) -> str:
    return "\\\\".join(part.decode("utf-8", "backslashreplace") for part in data.split(b"\\"))


def _tokenized(tokenizer: BpeTokenizer, ids: list[int], only_ids: bool, only_count: bool) -> dict[str, Any]:
    if only_count:
        return {"count": len(ids)}
    if only_ids:
        return {"count": len(ids), "ids": ids}
    tokens = [
        {
            "id": i,
            "text": tokenizer.piece(i).decode("utf-8", "replace"),
            "bytes": list(tokenizer.piece(i)),
            "control": tokenizer.is_control(i),
        }
        for i in ids
    ]
    return {"count": len(ids), "tokens": tokens}


def _content(words: Sequence[str] | None, file: str | None) -> str:
    """Text of the arguments, a file or standard input."""
    given = [w for w in words or () if w != "-"]
    if file is not None:
        if given:
            raise UsageError("text and --file were both given")
        return read_text(file)
    if given:
        return " ".join(given)
    if not words and sys.stdin.isatty():
        raise UsageError("no text was given", "put it behind the model's name, pipe it in, or use --file")
    return read_stdin()


def _ids(text: str) -> list[int]:
    words = re.split(r"[\s,\[\]]+", text)
    bad = [w for w in words if w and not re.fullmatch(r"[0-9]{1,9}", w)]
    if bad:
        raise UsageError(f"not a token id: {bad[0][:40]!r}", "ids are whole numbers, separated by blanks or commas")
    return [int(w) for w in words if w]


def _check(app: App, model: str, loaded: LoadedText) -> int:
    from strata_engine.text.check import check_format

    outcomes = check_format(loaded.chat, loaded.tokenizer)
    failed = [o.id for o in outcomes if not o.passed]
    if app.output.json_mode:
        checks = [{"id": o.id, "row": o.row, "passed": o.passed, "detail": o.detail} for o in outcomes]
        app.output.data("llmrun.template-check.v1", {"passed": not failed, "checks": checks})
        return CheckFailed.exit_code if failed else 0
    app.output.table(("CHECK", "ROW", "RESULT", "DETAIL"), [_row(o) for o in outcomes])
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(outcomes)} conversations fail with the template of {model}",
                          "another template (--chat-template)", {"failed": failed})  # fmt: skip
    return 0


def _row(outcome: Outcome) -> list[str]:
    return [outcome.id, outcome.row, "ok" if outcome.passed else "FAIL", outcome.detail]
