"""Which commands exist: data only. A command's module is imported when its name is typed, never for `--help`.

To add a command: a function in commands/, a line here, a help snapshot in tests/cli.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """`target` is module:function below strata_cli.commands; the function's first parameter is the typer.Context."""

    name: str
    target: str
    summary: str
    group: str
    aliases: tuple[str, ...] = ()


TALK, MODELS, SERVER, CHECK, SHELL = "Talk", "Models", "Server", "Measure and check", "Shell and settings"

COMMANDS: tuple[Command, ...] = (
    Command("chat", "chat:chat", "Chat with a model in the terminal", TALK),
    Command("run", "chat:run", "Ask once and print the answer", TALK),
    Command("tokenize", "text:tokenize", "Show how a text is split into tokens", TALK),
    Command("detokenize", "text:detokenize", "Turn token ids back into text", TALK),
    Command("template", "text:template", "Show the prompt a conversation becomes", TALK),
    Command("pull", "pull:pull", "Download a model and what belongs to it", MODELS),
    Command("ls", "models:ls", "List models", MODELS, ("list",)),
    Command("show", "models:show", "Show what a model is made of", MODELS),
    Command("rm", "models:rm", "Remove downloaded models", MODELS),
    Command("cp", "models:cp", "Give a model another name", MODELS, ("alias",)),
    Command("fit", "fit:fit", "Say whether and how a model fits this machine", MODELS, ("estimate",)),
    Command("cache", "cache:cache", "List, check or clean downloaded files", MODELS),
    Command("kernels", "kernels:kernels", "Build, list, check or clean compiled GPU kernels", MODELS),
    Command("serve", "serve:serve", "Serve models over HTTP", SERVER),
    Command("ps", "loaded:ps", "Show the loaded models of the running server", SERVER),
    Command("stop", "loaded:stop", "Unload a model of the running server", SERVER),
    Command("bench", "bench:bench", "Measure speed", CHECK),
    Command("doctor", "system:doctor", "Check this machine and this installation", CHECK),
    Command("hw", "system:hw", "Show the hardware", CHECK, ("info",)),
    Command("config", "housekeeping:config", "Read and change settings", SHELL),
    Command("completion", "housekeeping:completion", "Print or install shell completion", SHELL),
    Command("version", "system:version", "Show versions", SHELL),
)


def find(name: str) -> Command | None:
    """The command of this name or alias."""
    for command in COMMANDS:
        if name == command.name or name in command.aliases:
            return command
    return None
