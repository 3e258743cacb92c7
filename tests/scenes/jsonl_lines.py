"""Lines of JSONL of every kind: compact and spaced ones, damaged ones, and a list of bad ones."""

from __future__ import annotations

import json

from hypothesis import strategies as st

__all__ = ["BAD", "good_lines", "joined", "lines", "strings", "texts", "values"]

strings = st.text(
    st.one_of(st.sampled_from('"\\{}[]:,texti \t\n\r\0\u2028é中😀'), st.characters(codec="utf-8")),
    max_size=8,
)
values = st.recursive(
    st.one_of(strings, st.integers(), st.booleans(), st.none(), st.floats(-1e9, 1e9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["text", "id", "a", "b", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
texts = st.one_of(strings, st.just("plain words"), st.just("text"))


@st.composite
def good_lines(draw: st.DrawFn) -> bytes:
    record = draw(st.dictionaries(st.sampled_from(["x", "id", "a", "kind"]), values, max_size=3))
    record["text"] = draw(texts)
    record["id"] = draw(st.one_of(st.integers(), strings, st.just(7)))
    names = draw(st.permutations(list(record)))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]))
    line = json.dumps(
        {name: record[name] for name in names},
        ensure_ascii=draw(st.booleans()),
        separators=separators,
    )
    return line.encode() + draw(st.sampled_from([b"", b"", b"\r", b" "]))


BAD = [
    b'{"text":"a","id":1}{"text":"b","id":2}', b'{"text":"a","id":1} {"text":"b","id":2}',
    b'{"text":"a",', b'"id":1}', b'{"text":"a","id":1', b'{"text":"a","id":[', b'{"x":1}]}',
    b'\xef\xbb\xbf{"text":"a","id":1}', b'{"text":"a\x00b","id":1}', b"\0", b"",
    b" ", b"\t\r", b"\r", b"{}", b"[]", b"null", b"3", b'"text"', b"[1,2]", b"nul", b"NaN",
    b'{"text":"a\xff","id":1}', b'{"text":"a","id":1,"x":"\xff"}', b'{"text":"a","id":1,"\xc3":1}',
    b'{"text":"\xed\xa0\x80","id":1}', b'{"text":"a","id":1,"x":"\xc0\xaf"}',
    b'{"text":"\\ud800","id":1}', b'{"text":"\\udc00\\ud800","id":1}',
    b'{"text":"\\ud83d\\ude00","id":1}', b'{"text":"a","id":1,"x":"\\ud83d"}',
    b'{"text":"a","id":"\\ud83d"}', b'{"text":"a","id":1,"\\udead":0}',
    b'{"text":"a","id":NaN}', b'{"text":"a","id":1,"x":Infinity}', b'{"text":"a","id":1,"x":-}',
    b'{"text":"a","id":1e400}', b'{"text":"a","id":123456789012345678901234567890}',
    b'{"text":"a","id":1.0}', b'{"text":"a","id":true}', b'{"text":"a","id":null}', b'{"text":"a"}',
    b'{"text":null,"id":1}', b'{"text":5,"id":1}', b'{"text":["a"],"id":1}', b'{"id":1}',
    b'{"text":{"text":"a"},"id":1}', b'{"text":false,"id":1}', b'{"text":"","id":1}',
    b'{"text":"a","text":"b","id":1}', b'{"text":"a","te\\u0078t":"b","id":1}',
    b'{"te\\u0078t":"b","id":1}', b'{"text":1,"text":"b","id":1}', b'{"text":"b","text":1,"id":1}',
    b'{"text":"a","id":1,"id":2}', b'{"text":"a","id":1,"x":{"text":1,"text":2}}',
    b'{"text":"a","id":1,"x":{"text":"b"}}', b'{"text":"a","id":1,"x":"text"}',
    b'{"x":1,"x":2,"text":"a","id":1}', b'{"text" : "a", "id":1}', b"{'text':'a','id':1}",
    b'{"text":"a","id":1,"x":' + b"[" * 63 + b"]" * 63 + b"}",
    b'{"text":"a","id":1,"x":' + b"[" * 64 + b"]" * 64 + b"}",
    b'{"text":"a","id":1,"x":' + b'{"x":' * 63 + b"0" + b"}" * 63 + b"}",
    b'{"text":"a","id":1,"x":' + b'{"x":' * 64 + b"0" + b"}" * 64 + b"}",
    b'{"text":"' + b"[" * 70 + b'","id":1}', b'{"text":"' + b"\\u005b" * 70 + b'","id":1}',
    b'{"text":"' + b"\\u007B" * 70 + b'","id":1,"x":' + b"[" * 64 + b"]" * 64 + b"}",
    b'{"text":"a","id":1,"x":' + b"[ " * 40 + b"]" * 40 + b',"y":' + b"[" * 40 + b"]" * 40 + b"}",
    b'{"text":"a\\","id":1}', b'{"text":"a\\\\","id":1}', b'{"text":"\\q","id":1}',
    b'{"text":"a\tb","id":1}', b'{"text":"a","id":01}', b'{"text":"a","id":1,}',
    b'{"text":"a\xe2\x80\xa8b","id":1}', b'{"text":"\\u0000","id":-0}',
]  # fmt: skip


@st.composite
def mutated_lines(draw: st.DrawFn) -> bytes:
    line = bytearray(draw(good_lines()))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(line)))
        octet = draw(st.sampled_from(b'"\\{}[],: \xff\xc3\xa90ntu\0'))
        line[at : at + draw(st.integers(0, 1))] = bytes([octet])[: draw(st.integers(0, 1))]
    return bytes(line).replace(b"\n", b"")


lines = st.one_of(good_lines(), good_lines(), st.sampled_from(BAD), mutated_lines())


def joined(parts: list[bytes], ended: bool) -> bytes:
    return b"\n".join(parts) + (b"\n" if ended else b"")
