"""Every form of a model reference, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_engine.errors import UsageError
from strata_engine.registry.reference import BadReference, parse

HEX = "ab" * 32
FORMS = [
    ("smollm2", "name", "smollm2"),
    ("qwen3.5-fq:iq4", "name", "qwen3.5-fq:iq4"),
    ("qwen3.5-fq@main:iq4", "name", "qwen3.5-fq:iq4@main"),
    ("no", "name", "no"),
    ("1.0", "name", "1.0"),
    ("  smollm2 ", "name", "smollm2"),
    ("user/repo", "hub", "hf.co/user/repo"),
    ("hf.co/user/repo:Q4_K_M", "hub", "hf.co/user/repo:Q4_K_M"),
    ("HF.co/user/repo", "hub", "hf.co/user/repo"),
    ("hf://user/repo/dir/file.gguf", "hub", "hf.co/user/repo/dir/file.gguf"),
    ("user/repo@refs/pr/1", "hub", "hf.co/user/repo@refs/pr/1"),
    ("modelscope:user/repo:q8_0", "hub", "modelscope:user/repo:q8_0"),
    ("ms://user/repo", "hub", "modelscope:user/repo"),
    ("https://huggingface.co/user/repo", "hub", "hf.co/user/repo"),
    ("https://huggingface.co/user/repo/resolve/v1/x.gguf", "hub", "hf.co/user/repo/x.gguf@v1"),
    ("https://huggingface.co/user/repo/tree/main/IQ3_S", "hub", "hf.co/user/repo:IQ3_S@main"),
    ("https://modelscope.cn/models/user/repo", "hub", "modelscope:user/repo"),
    ("./x.gguf", "path", "./x.gguf"),
    ("../x", "path", "../x"),
    ("/abs/dir", "path", "/abs/dir"),
    ("~/m.gguf", "path", "~/m.gguf"),
    (".", "path", "."),
    ("x-00001-of-00003.gguf", "path", "x-00001-of-00003.gguf"),
    ("C:\\m\\x.gguf", "path", "C:\\m\\x.gguf"),
    ("c:/m/x.gguf", "path", "c:/m/x.gguf"),
    ("\\\\server\\share\\x.gguf", "path", "\\\\server\\share\\x.gguf"),
    ("file:///a%20b/x.gguf", "path", "/a b/x.gguf"),
    ("file:///C:/m/x.gguf", "path", "C:/m/x.gguf"),
    ("https://host/x.gguf", "url", "https://host/x.gguf"),
    (f"https://host:8080/a/x.gguf?k=1#sha256={HEX}", "url", f"https://host:8080/a/x.gguf?k=1#sha256={HEX}"),
]


@pytest.mark.parametrize(("text", "kind", "normal"), FORMS)
def test_a_form_is_known(text: str, kind: str, normal: str):
    found = parse(text)
    assert (found.kind, found.normal) == (kind, normal)


@pytest.mark.parametrize("text", [f[0] for f in FORMS if f[1] in ("name", "hub")])
def test_a_normal_text_means_the_same_again(text: str):
    normal = parse(text).normal
    assert parse(normal).normal == normal


BAD = ["", " ", "\n", "a\x00b", "a b", "a:b:c", "a:", "a@", "a@x@y", ":x", "user/", "/user:", "a/../b", "hf.co/user",
       "user/repo/../x.gguf", "user/repo//x", "ftp://h/x", "https://", "https://h/x#md5=1", "https://h/x#sha256=12",
       "file://host/x", "file:", "hf.co/us er/repo", "user/repo:Q4/K", "https://huggingface.co/user"]  # fmt: skip


@pytest.mark.parametrize("text", [t for t in BAD if t != "/user:"])
def test_a_text_without_a_form_is_a_usage_error(text: str):
    with pytest.raises(BadReference) as caught:
        parse(text)
    assert isinstance(caught.value, UsageError)
    assert caught.value.exit_code == 2


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str):
    try:
        found = parse(text)
    except BadReference:
        return
    assert found.kind in ("name", "hub", "path", "url")
    assert found.target
