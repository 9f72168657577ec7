"""Languages are told apart by their writing systems."""

import pytest

from eyrie.tokens.scripts import script


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, how are you?", "latin"),
        ("Größe über alles", "latin"),
        ("Привет, как дела?", "cyrillic"),
        ("你好世界", "han"),
        ("東京の天気は晴れです", "kana"),
        ("안녕하세요", "hangul"),
        ("مرحبا بالعالم", "arabic"),
        ("नमस्ते", "devanagari"),
        ("print('你好世界今天天气很好')", "han"),
        ("12345 + 678", "other"),
        ("", "other"),
    ],
)
def test_commonest_writing_system(text, expected):
    assert script(text) == expected
