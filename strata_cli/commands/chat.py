"""run and chat: one question, or a conversation in the terminal. Off a terminal `chat` behaves as `run`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata_cli import local, prompt
from strata_cli.app import App
from strata_cli.flags import LoadFlags, SamplingFlags, sampling_settings_of, to_sampling, with_flags
from strata_cli.once import Manner, Once, check_writable
from strata_cli.pictures import read_image, require_sight
from strata_cli.repl.chat import Chat
from strata_cli.repl.conversation import Conversation
from strata_cli.repl.echo import keys_unseen
from strata_cli.repl.input import LineSource, PlainInput
from strata_cli.repl.sessions import LAST, Sessions
from strata_cli.specflags import SpecFlags
from strata_cli.talkflags import KeepFlags, OnceFlags, PlaceFlags, TalkFlags, ThinkCommand
from strata_engine.chat import TokenRequest
from strata_engine.config import SamplingParams
from strata_engine.errors import NotFound, UsageError

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [PROMPT]", help="Without MODEL the default model answers; behind -- a prompt may begin with -"
    ),
]
run = typer.Typer(add_completion=False, rich_markup_mode=None)
chat = typer.Typer(add_completion=False, rich_markup_mode=None)


@run.command("run", cls=ThinkCommand)
@with_flags(LoadFlags, SpecFlags, SamplingFlags, TalkFlags, OnceFlags, PlaceFlags)
def run_once(
    context: typer.Context,
    load: LoadFlags,
    spec: SpecFlags,
    sampling: SamplingFlags,
    talk: TalkFlags,
    once: OnceFlags,
    place: PlaceFlags,
    words: Words = None,
) -> int:
    """Ask once and print the answer. Piped text goes before the prompt; a prompt of - is the piped text alone."""
    app = App.of(context)
    spoken = _spoken(app, words, place)
    if spoken.words is None and prompt.stdin_is_terminal() and not talk.file and not app.output.json_mode:
        raise UsageError("no prompt", f'llmrun run {spoken.model or "MODEL"} "question", or llmrun chat')
    return _ask(app, spoken, Flags(load, spec, sampling, talk, place), once, None)


@chat.command("chat", cls=ThinkCommand)
@with_flags(LoadFlags, SpecFlags, SamplingFlags, TalkFlags, KeepFlags, PlaceFlags)
def chat_loop(
    context: typer.Context,
    load: LoadFlags,
    spec: SpecFlags,
    sampling: SamplingFlags,
    talk: TalkFlags,
    keep: KeepFlags,
    place: PlaceFlags,
    words: Words = None,
) -> int:
    """Chat with a model in the terminal. /help lists the commands, Ctrl-D leaves."""
    app = App.of(context)
    spoken = _spoken(app, words, place)
    flags = Flags(load, spec, sampling, talk, place)
    if not prompt.stdin_is_terminal():
        return _ask(app, spoken, flags, OnceFlags(), keep)
    if app.output.json_mode:
        raise UsageError("chat is for people; it has no --json", "llmrun run --json")
    return _converse(app, spoken, flags, keep)


class Flags:
    """The groups that run and chat share."""

    def __init__(
        self, load: LoadFlags, spec: SpecFlags, sampling: SamplingFlags, talk: TalkFlags, place: PlaceFlags
    ) -> None:
        self.load, self.spec, self.sampling, self.talk, self.place = load, spec, sampling, talk, place


def _spoken(app: App, words: list[str] | None, place: PlaceFlags) -> prompt.Spoken:
    def known(word: str) -> bool:
        # The server is asked last, and only about a single word that could be a question just as well.
        single = words is not None and len(words) == 1 and not any(c.isspace() for c in word)
        return local.is_model(app, word) or (single and word in local.server_names(app, place))

    return prompt.split_model(words or [], known, lambda: local.model_names(app))


def _ask(app: App, spoken: prompt.Spoken, flags: Flags, once: OnceFlags, keep: KeepFlags | None) -> int:
    if once.raw and flags.talk.system:
        raise UsageError("--raw sends the prompt alone; --system has no place in it")
    if once.raw and flags.talk.image:
        raise UsageError("--raw sends the prompt alone; --image has no place in it")
    if flags.sampling.logprobs is not None and not app.output.json_mode:
        raise UsageError("--logprobs shows in JSON only", "--json or --jsonl")
    system = prompt.system_text(flags.talk.system)
    only = spoken.words == "-"
    piped = prompt.read_piped(sys.stdin, lambda text: _while_waiting(app, text), only)
    text = prompt.join_prompt(piped, flags.talk.file or (), None if only else spoken.words)
    images = list(map(read_image, flags.talk.image or ()))
    manner = Manner(
        count=once.count,
        extract=once.extract,
        strict=once.strict,
        stats=flags.talk.stats,
        hide_thinking=flags.talk.hide_thinking,
        timeout_s=once.timeout_s,
        file=None if once.file_out in (None, "-") else prompt.path_of(once.file_out),
    )
    if manner.file is not None:
        check_writable(manner.file)  # before anything slow
    sessions = Sessions(app.paths.sessions)
    name = _session_name(sessions, keep) if keep else None
    with local.opened(
        app, spoken.model or _session_model(sessions, name), flags.load, flags.place, flags.spec
    ) as found:
        require_sight(found.model, flags.talk.image or ())
        params = to_sampling(app, flags.sampling, found.model.defaults)
        talk = _conversation(app, sessions, name, found, params)
        talk.system = system or talk.system
        talk.thinking = flags.talk.thinking if flags.talk.thinking is not None else talk.thinking
        request = TokenRequest(text=text) if once.raw else talk.request(text, images)
        runner = Once(app.output, found.service, found.model, manner, found.load_s)
        answers, code = runner.run(request, talk.params)
        if name is not None and answers[0].text:
            talk.add(text, answers[0].text, answers[0].reasoning, answers[0].stopped, images)
            sessions.save(name, talk)
        return code


def _while_waiting(app: App, text: str) -> None:
    app.output.note(text)
    local.import_engine()  # takes over a second, and there is nothing else to do now


def _converse(app: App, spoken: prompt.Spoken, flags: Flags, keep: KeepFlags) -> int:
    from strata_cli.repl.loop import run_loop

    system = prompt.system_text(flags.talk.system)
    files = [prompt.fenced_file(name) for name in flags.talk.file or ()]
    images = list(map(read_image, flags.talk.image or ()))
    sessions = Sessions(app.paths.sessions)
    name = _session_name(sessions, keep)
    history = bool(app.settings.get("history")) and not keep.no_history
    source = _line_source(app, sessions, history)
    with local.opened(
        app, spoken.model or _session_model(sessions, name), flags.load, flags.place, flags.spec
    ) as found:
        require_sight(found.model, flags.talk.image or ())
        params = to_sampling(app, flags.sampling, found.model.defaults)
        talk = _conversation(app, sessions, name, found, params)
        talk.system = system or talk.system
        talk.thinking = flags.talk.thinking if flags.talk.thinking is not None else talk.thinking
        settings = sampling_settings_of(app, flags.sampling, found.model.defaults)
        loop = Chat(
            service=found.service,
            model=found.model,
            talk=talk,
            output=app.output,
            sessions=sessions,
            open_model=lambda text: local.switch(app, found, text, flags.load),
            list_models=lambda: local.local_names(app),
            origins={key: settings.origin(key) for key in settings.values},
            session=name or (LAST if history else None),
            stats=flags.talk.stats,
            hide_thinking=flags.talk.hide_thinking,
            load_s=found.load_s,
            pending=files,
            answering=keys_unseen,
            images=images,
        )
        _greet(app, loop)
        return run_loop(loop, source, spoken.words or "")


def _line_source(app: App, sessions: Sessions, history: bool) -> LineSource:
    if app.env.get("TERM") in ("dumb", "unknown"):
        return PlainInput(iter(sys.stdin.readline, ""), _ask_plainly)
    from strata_cli.repl.slash import all_names
    from strata_cli.repl.terminal import TerminalInput

    names = {"/load": lambda: [*local.local_names(app), *(e.name for e in sessions.entries())]}
    return TerminalInput(all_names(), names, app.paths.state / "history", history)


def _ask_plainly(prompt_text: str) -> None:
    sys.stderr.write(prompt_text)
    sys.stderr.flush()


def _greet(app: App, loop: Chat) -> None:
    count = len(loop.talk.messages)
    going_on = f", going on with {count} messages" if count else ""
    app.output.note(
        f"{loop.model.name}, {loop.model.context_tokens} tokens of context{going_on}. /help, Ctrl-D leaves."
    )


def _session_name(sessions: Sessions, keep: KeepFlags) -> str | None:
    if keep.session is not None:
        sessions.path(keep.session)  # refuses names that are none, before the model loads
        return keep.session
    if not keep.resume:
        return None
    newest = next(iter(sessions.entries()), None)
    if newest is None:
        raise NotFound("no saved conversation to continue", "llmrun chat begins one")
    return newest.name


def _session_model(sessions: Sessions, name: str | None) -> str:
    """The model a saved conversation was held with; "" for none: the default."""
    return sessions.load(name, SamplingParams()).model if name and sessions.exists(name) else ""


def _conversation(
    app: App, sessions: Sessions, name: str | None, found: local.OpenModel, params: SamplingParams
) -> Conversation:
    if name is not None and sessions.exists(name):
        talk = sessions.load(name, params)
        app.output.detail(f"session {name}: {len(talk.messages)} messages")
        talk.model = found.reference
        return talk
    return Conversation(found.reference, params)
