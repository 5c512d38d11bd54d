"""What a user types for a model, taken apart: catalog name, hub repository, path or URL. No disk, no network.

name[:variant][@revision]                      catalog entry or alias
[hf.co/]user/repo[/file][:quant][@revision]    hub repository (also hf://, modelscope:, ms://, hub page addresses)
./x.gguf, /dir, C:\\m\\x.gguf, file:///x       path (a drive letter is no variant)
https://host/x.gguf[#sha256=...]               one file
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from strata_engine.errors import UsageError

_HUB_PREFIXES = {
    "hf://": "huggingface", "hf:": "huggingface", "hf.co/": "huggingface", "huggingface.co/": "huggingface",
    "ms://": "modelscope", "ms:": "modelscope", "modelscope:": "modelscope", "modelscope://": "modelscope",
    "modelscope.cn/models/": "modelscope", "www.modelscope.cn/models/": "modelscope",
}  # fmt: skip
_SHORT = {"huggingface": "hf.co/", "modelscope": "modelscope:"}
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPO = re.compile(rf"{_PART}/{_PART}")
_NAME = re.compile(r"[^\s:@/\\#]+")
_FORMS = "examples: smollm2, smollm2:q4_1, user/repo:Q4_K_M, ./model.gguf, https://host/model.gguf"
_WEIGHT_ENDINGS = (".gguf", ".safetensors")


class BadReference(UsageError):
    """The text is not a model reference."""

    code = "bad_reference"


@dataclass(frozen=True)
class Reference:
    """`kind`: name | hub | path | url. `target`: catalog name, user/repo, path text, or URL without its fragment.

    `bare` marks text that a path on this disk could also explain (a name, or user/repo without a hub's prefix).
    """

    text: str
    kind: str
    target: str
    hub: str = ""
    file: str = ""
    variant: str = ""
    revision: str = ""
    sha256: str = ""
    bare: bool = False

    @property
    def normal(self) -> str:
        """One spelling for each reference; equal texts name the same model."""
        tail = (f"/{self.file}" if self.file else "") + (f":{self.variant}" if self.variant else "")
        tail += f"@{self.revision}" if self.revision else ""
        if self.kind == "hub":
            return _SHORT[self.hub] + self.target + tail
        if self.kind == "url":
            return self.target + (f"#sha256={self.sha256}" if self.sha256 else "")
        return self.target + (tail if self.kind == "name" else "")


def parse(text: str) -> Reference:
    """The reference a text stands for. Raises BadReference when it has no known form."""
    stripped = text.strip()
    if not stripped or any(ord(c) < 32 or ord(c) == 127 for c in stripped):
        raise BadReference(f"not a model reference: {text!r}", _FORMS)
    if _is_path(stripped):
        return Reference(text, "path", _path_text(stripped))
    lower = stripped.lower()
    if lower.startswith(("http://", "https://")):
        return _from_url(text, stripped)
    for prefix in sorted(_HUB_PREFIXES, key=len, reverse=True):
        if lower.startswith(prefix):
            return _from_hub(text, _HUB_PREFIXES[prefix], stripped[len(prefix) :].lstrip("/"))
    if "://" in stripped:
        raise BadReference(f"unknown kind of address: {stripped}", _FORMS)
    if lower.endswith(_WEIGHT_ENDINGS) and not _REPO.match(stripped):
        return Reference(text, "path", stripped)
    if "/" in stripped:
        return replace(_from_hub(text, "huggingface", stripped), bare=True)
    return _from_name(text, stripped)


def _is_path(text: str) -> bool:
    if text in (".", "..", "~") or text.startswith(("./", "../", "/", "~/", ".\\", "..\\", "\\\\", "~\\")):
        return True
    # A Windows path: one letter, a colon, a slash. "C:\m\x.gguf" has no variant.
    return text.lower().startswith("file:") or re.match(r"[A-Za-z]:[\\/]", text) is not None


def _path_text(text: str) -> str:
    if not text.lower().startswith("file:"):
        return text
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise BadReference(f"a file: address must name no host: {text}", "file:///path/to/model.gguf")
    path = unquote(parts.path)
    if not path:
        raise BadReference(f"a file: address without a path: {text}", "file:///path/to/model.gguf")
    return path[1:] if re.match(r"/[A-Za-z]:[\\/]", path) else path


def _from_url(text: str, url: str) -> Reference:
    parts = urlsplit(url)
    if not parts.hostname:
        raise BadReference(f"an address without a host: {url}", _FORMS)
    host = parts.hostname.lower()
    if host in ("huggingface.co", "www.huggingface.co", "hf.co"):
        return _from_hub_page(text, "huggingface", parts.path.strip("/"))
    if host in ("modelscope.cn", "www.modelscope.cn") and parts.path.startswith("/models/"):
        return _from_hub_page(text, "modelscope", parts.path[len("/models/") :].strip("/"))
    digest = ""
    if parts.fragment:
        match = re.fullmatch(r"sha256[=:]([0-9a-fA-F]{64})", parts.fragment)
        if not match:
            raise BadReference(f"the part after # must be sha256=<64 hex digits>: {url}", "drop the part after #")
        digest = match[1].lower()
    return Reference(text, "url", url.split("#", 1)[0], sha256=digest)


def _from_hub_page(text: str, hub: str, path: str) -> Reference:
    pieces = [unquote(p) for p in path.split("/")]
    if len(pieces) < 2:
        raise BadReference(f"a hub address without user/repository: {text.strip()}", _FORMS)
    revision, file = "", ""
    if len(pieces) > 3 and pieces[2] in ("resolve", "blob", "tree", "raw"):
        revision, file = pieces[3], "/".join(pieces[4:])
    elif len(pieces) == 4 and pieces[2] == "file" and pieces[3] == "view":
        raise BadReference(f"not an address of a repository or file: {text.strip()}", _FORMS)
    reference = _from_hub(text, hub, "/".join(pieces[:2]))
    # A folder of a repository names its files as a quant would: .../tree/main/IQ3_S.
    if pieces[2:3] == ["tree"] and file:
        return replace(reference, revision=_checked_revision(revision, text), variant=file.split("/")[0])
    return replace(reference, revision=_checked_revision(revision, text), file=_checked_file(file, text))


def _from_hub(text: str, hub: str, rest: str) -> Reference:
    body, variant, revision = _split_tail(text, rest)
    pieces = body.split("/")
    repo = "/".join(pieces[:2])
    if not _REPO.fullmatch(repo):
        raise BadReference(f"not user/repository: {body or text.strip()}", _FORMS)
    return Reference(text, "hub", repo, hub, _checked_file("/".join(pieces[2:]), text), variant, revision)


def _from_name(text: str, rest: str) -> Reference:
    name, variant, revision = _split_tail(text, rest)
    if not _NAME.fullmatch(name):
        raise BadReference(f"not a model reference: {text.strip()!r}", _FORMS)
    return Reference(text, "name", name, variant=variant, revision=revision, bare=True)


def _split_tail(text: str, rest: str) -> tuple[str, str, str]:
    """Body, variant and revision; ":variant" and "@revision" may come in either order."""
    found = {":": "", "@": ""}
    body = re.split(r"[:@]", rest, maxsplit=1)[0]
    for sign, value in re.findall(r"([:@])([^:@]*)", rest[len(body) :]):
        if not value or found[sign]:
            what = "variant" if sign == ":" else "revision"
            raise BadReference(f"{'empty' if not value else 'second'} {what} in {text.strip()!r}", _FORMS)
        found[sign] = value
    if re.search(r"[\s/\\]", found[":"]):
        raise BadReference(f"not a variant: {found[':']!r} in {text.strip()!r}", _FORMS)
    return body, found[":"], _checked_revision(found["@"], text)


def _checked_revision(revision: str, text: str) -> str:
    if re.search(r"[\s\\?#]|\.\.", revision):
        raise BadReference(f"not a revision: {revision!r} in {text.strip()!r}", _FORMS)
    return revision


def _checked_file(file: str, text: str) -> str:
    if file and (any(p in ("", ".", "..") for p in file.split("/")) or "\\" in file):
        raise BadReference(f"not a file of a repository: {file!r} in {text.strip()!r}", _FORMS)
    return file
